"""Runs that stop being numbers: nothing of them is stored or exported."""

import json
import math

import pytest

from draft_node.training import checkpoint
from draft_node.training.__main__ import main
from draft_node.training.block_export import TrainingRecord, write_drafter
from draft_node.training.block_objective import Figures
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.provenance import RunRecord
from draft_node.training.trainer import Trainer
from specserve.errors import Failed
from tests.draft_node.training.drafters import TEXT, make_objective, write_target
from tests.draft_node.training.test_trainer import SCHEDULE, make_trainer

KINDS = {
    "dspark": ("--anchors", "4", "--gamma", "3", "--rank", "4", "--layers", "1"),
    "local-head": ("--width", "12", "--rank", "5"),
    "lm": ("--hidden", "16", "--layers", "1", "--intermediate", "24", "--heads", "2",
           "--kv-heads", "1", "--head-dim", "8"),
}  # fmt: skip


def run_through(trainer: Trainer) -> None:
    trainer.run(SCHEDULE, lambda *_: None)


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_its_checkpoint(tiny, tmp_path):
    trainer = make_trainer(tiny, tmp_path)
    sound = trainer._loss

    def loss(ids, labels):
        return sound(ids, labels) * (math.nan if trainer.progress.step == 7 else 1)

    trainer._loss = loss
    with pytest.raises(Failed, match=r"at step 8 the loss is nan; .* --restart with a lower"):
        run_through(trainer)
    model, _, progress = checkpoint.load(tmp_path / checkpoint.FILE_NAME)
    assert progress.step == 5
    assert all(bool(tensor.isfinite().all()) for tensor in model.values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_weights_that_are_no_numbers_are_not_saved(part, value, tiny, tmp_path):
    trainer = make_trainer(tiny, tmp_path)
    trainer.stop = True
    run_through(trainer)
    before = (tmp_path / checkpoint.FILE_NAME).read_bytes()
    trainer._step(SCHEDULE)
    tensors = {"model": trainer.model.state_dict, "optimizer": trainer.optimizer.state_tensors}
    name, tensor = list(tensors[part]().items())[-1]
    tensor.view(-1)[0] = value
    with pytest.raises(Failed, match=f"at step 1 {name} holds NaN or infinity"):
        trainer.save()
    assert (tmp_path / checkpoint.FILE_NAME).read_bytes() == before


def test_held_out_figures_that_are_no_numbers_end_the_run(tiny, tmp_path, monkeypatch):
    trainer = make_trainer(tiny, tmp_path)
    monkeypatch.setattr(trainer.model, "evaluate", lambda _: {"prose": 2.0, "code": math.inf})
    with pytest.raises(Failed, match="at step 0 the held-out figure code is inf"):
        trainer.evaluate()
    assert trainer.progress.history == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_diverged_run_exports_nothing(kind, tmp_path, capsys):
    target = write_target(tmp_path / "target")
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"of another run")
    words = ["--target", target, "--text", tmp_path / "text.txt", "--work", tmp_path / "work"]
    words += ["--out", tmp_path / "out", "--self-text", "0", "--threads", "1", "--steps", "60"]
    words += ["--rate", "1e9", "--tokens-per-step", "256", "--restart", *KINDS[kind]]
    assert main([kind, *map(str, words)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("specserve: training diverged, at step ")
    assert line.endswith("; nothing is exported; --restart with a lower --rate begins anew")
    (stored,) = (tmp_path / "out").iterdir()
    assert stored.read_bytes() == b"of another run"


def test_slots_without_an_acceptance_are_none_in_json(tmp_path):
    target = FrozenTarget(write_target(tmp_path / "target"))
    drafter = make_objective(target, "dflash").drafter
    record = TrainingRecord(
        **vars(RunRecord("command", "target", 1, 2, 0.5)), num_anchors=4, max_gap=0
    )
    figures = {"text": {0: Figures(1.5, [0.5, math.nan], math.nan)}}
    write_drafter(drafter.state_dict(), drafter.spec, record, figures, tmp_path / "out")
    text = (tmp_path / "out" / "held_out.json").read_text()
    found = json.loads(text, parse_constant=pytest.fail)["held_out"]["text"]["gap 0"]
    assert found == {"tokens_per_round": 1.5, "acceptance": [0.5, None]}
