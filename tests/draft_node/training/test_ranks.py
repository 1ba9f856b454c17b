"""Training over several processes: real ones, over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draft_node.training import checkpoint
from draft_node.training.ranks import Ranks

_WORKER = """
import json, sys
from itertools import count
from pathlib import Path
import torch
from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.ranks import meet, part_ways
from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer, TrainerConfig
from draft_node.training.batches import BatchSource
from tests.draft_node.training.drafters import patterned_stream

folder, rank, size, stop_at, seed = Path(sys.argv[1]), *map(int, sys.argv[2:6])
torch.set_num_threads(1)
ranks = meet(folder, rank, size, "cpu")
tiny = DecoderConfig(vocab_size=280, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=8, intermediate_size=48,
                     max_position_embeddings=64)
config = TrainerConfig(tokens_per_step=128, micro_tokens=128, length=16, long_lengths=(),
                       compile=False, bfloat16=False, evaluate_tokens=65, seed=0, ranks=ranks)
streams = {"text": patterned_stream()}
ticks = count()
torch.manual_seed(rank)
start = {name: torch.randn(w.shape) * .1 for name, w in Decoder(tiny).state_dict().items()}
trainer = Trainer(Decoder(tiny), BatchSource(streams, 0, window=16), streams, folder, config,
                  clock=lambda: float(next(ticks)), initial=start)
original = trainer._step
def step(schedule):
    # Only the last process is told to stop.
    trainer.stop = rank == size - 1 and trainer.progress.step == stop_at
    return original(schedule)
trainer._step = step
done = trainer.run(Schedule(12, 4, in_steps=True), lambda *_: None)
print(json.dumps([done, trainer.progress.step, trainer.progress.tokens,
                  sum(float(p.sum()) for p in trainer.model.parameters())]))
part_ways()
"""


def train(folder: Path, count: int, stop_at: int = -1) -> list[list]:
    folder.mkdir(exist_ok=True)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *map(str, (folder, rank, count, stop_at, rank))],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count
    return [json.loads(lines.splitlines()[-1]) for lines in said]


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_have_the_same_weights(tmp_path):
    """Each starts with weights of its own, and those of the first count."""
    [alone] = train(tmp_path / "one", 1)
    first, second = train(tmp_path / "two", 2)
    assert first == second
    assert alone[:3] == first[:3] == [True, 12, 12 * 128]
    model, _, progress = checkpoint.load(tmp_path / "two" / checkpoint.FILE_NAME)
    other, _, _ = checkpoint.load(tmp_path / "one" / checkpoint.FILE_NAME)
    assert progress.step == 12
    for name, weight in other.items():
        torch.testing.assert_close(model[name], weight, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
def test_all_stop_behind_the_same_step_when_one_is_told_to(tmp_path):
    found = train(tmp_path / "run", 2, stop_at=4)
    assert [one[:2] for one in found] == [[False, 5], [False, 5]]
    assert checkpoint.load(tmp_path / "run" / checkpoint.FILE_NAME)[2].step == 5


def test_one_alone_takes_all_rows_and_draws_as_ever():
    alone = Ranks()
    assert alone.part(7) == slice(0, 7)
    assert alone.seed(12) == 12
    assert alone.agree(stop=True, active_s=3.0) == (True, 3.0)
    parts = [Ranks(rank, 3).part(9) for rank in range(3)]
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 6), (6, 9)]
    assert len({Ranks(rank, 3).seed(12) for rank in range(3)}) == 3
