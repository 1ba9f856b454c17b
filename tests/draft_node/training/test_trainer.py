from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_node.training import checkpoint, trainer
from draft_node.training.batches import BatchSource
from draft_node.training.checkpoint import Progress
from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer, TrainerConfig

SCHEDULE = Schedule(total=24, decay=8, warmup=2)


def _streams(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    pattern = rng.integers(8, 40, size=16)
    return {
        "code": np.tile(pattern, 60).astype(np.uint16),
        "prose": rng.integers(40, 96, size=700).astype(np.uint16),
    }


def make_trainer(tiny: DecoderConfig, folder: Path, **changes: object) -> Trainer:
    settings = {
        "tokens_per_step": 128, "micro_tokens": 64, "length": 16, "long_lengths": (32, 64),
        "compile": False, "checkpoint_every_s": 5.0, "evaluate_every_s": 7.0, "log_every_s": 1.0,
        "evaluate_tokens": 65,
    }  # fmt: skip
    ticks = count()  # every step seems to take one second
    return Trainer(
        Decoder(tiny),
        BatchSource(_streams(0), seed=1, window=16),
        _streams(0),
        folder,
        TrainerConfig(**(settings | changes)),
        clock=lambda: float(next(ticks)),
    )


def _ignore(*_: object) -> None:
    pass


@pytest.mark.slow
def test_resumed_run_is_bit_identical_to_an_uninterrupted_one(tiny, tmp_path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = make_trainer(tiny, tmp_path / "whole")
    assert whole.run(SCHEDULE, _ignore)

    first = make_trainer(tiny, tmp_path / "parts")

    def interrupt(running: Trainer, loss: float, tokens_per_s: float) -> None:
        running.stop = running.progress.step >= 11

    assert not first.run(SCHEDULE, interrupt)
    second = make_trainer(tiny, tmp_path / "parts")
    assert second.progress.step == 11
    assert second.run(SCHEDULE, _ignore)

    assert second.progress.step == whole.progress.step == 24
    assert second.batches.cursors == whole.batches.cursors
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    for name, tensor in whole.optimizer.state_tensors().items():
        assert torch.equal(tensor, second.optimizer.state_tensors()[name]), name


@pytest.mark.slow
def test_training_learns_a_repeating_pattern(tiny, tmp_path) -> None:
    run = make_trainer(tiny, tmp_path)
    before = run.evaluate()["code"]
    run.run(SCHEDULE, _ignore)
    assert run.evaluate()["code"] < before - 0.5


@pytest.mark.slow
def test_long_rows_come_late(tiny, tmp_path) -> None:
    run = make_trainer(tiny, tmp_path)
    lengths = []
    original = run._length

    def spy(schedule: Schedule) -> int:
        lengths.append(original(schedule))
        return lengths[-1]

    run._length = spy
    run.run(SCHEDULE, _ignore)
    assert set(lengths[:9]) == {16}
    assert set(lengths) == {16, 32, 64}


def test_rows_are_no_longer_than_the_shortest_stream(tiny, tmp_path) -> None:
    run = make_trainer(tiny, tmp_path, long_lengths=(32, 704))
    lengths = set()
    for run.progress.step in range(30):
        lengths.add(run._length(SCHEDULE))
        run._active.add(1.0)
    assert lengths == {16, 32}
    ids, _ = run.batches.next(2, run.batches.longest)
    assert ids.shape == (2, 699)


def test_checkpoint_survives_a_crash_while_writing(tiny, tmp_path, monkeypatch) -> None:
    path = tmp_path / checkpoint.FILE_NAME
    checkpoint.save(path, {"w": torch.ones(2)}, {}, Progress(step=3, cursors={"code": 5}))

    def crash(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", crash)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, {"w": torch.zeros(2)}, {}, Progress(step=4))
    model, optimizer, progress = checkpoint.load(path)
    assert progress == Progress(step=3, cursors={"code": 5})
    assert torch.equal(model["w"], torch.ones(2))
    assert optimizer == {}


def test_an_epoch_visits_every_window_once() -> None:
    stream = np.arange(16 * 21, dtype=np.uint16)
    source = BatchSource({"code": stream}, seed=0, window=16)
    firsts = [int(source.next(1, 16)[0][0, 0]) for _ in range(20)]
    assert len(set(firsts)) == 20
    assert source.epochs("code") == 1.0
    ids, labels = source.next(2, 32)
    assert torch.equal(labels[:, :-1], ids[:, 1:])
    assert ids.shape == (2, 32)


def test_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with trainer.num_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
