import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specserve.model.parallel import TensorParallel
from tests import golden_case
from tests.specserve.model.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.specserve.model.parallel_worker import run

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """What `run` replaces."""
    monkeypatch.setattr(golden_case, "make_forward", golden_case.make_forward)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    write_checkpoint(folder / "qwen3", QWEN3)
    write_checkpoint(folder / "llama", LLAMA)
    return folder


def run_ranks(folder: Path, size: int) -> list[dict[str, torch.Tensor]]:
    """What each of `size` processes saved."""
    module = [sys.executable, "-m", "tests.specserve.model.parallel_worker", str(folder)]
    ranks = [subprocess.Popen([*module, str(rank), str(size)], cwd=ROOT) for rank in range(size)]
    try:
        codes = [rank.wait(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * size
    return [load_file(folder / f"out-{size}-{rank}.safetensors") for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_several_ranks_give_the_bits_of_one(folder, size):
    ranks = run_ranks(folder, size)

    for name, by_torch in itertools.product(("qwen3", "llama"), (True, False)):
        prefix = f"{name}.{by_torch}"
        alone = run(folder / name, TensorParallel(), deterministic=True, by_torch=by_torch)
        for key, expected in alone.items():
            assert torch.equal(ranks[0][f"{prefix}.exact.{key}"], expected), (prefix, key)
            torch.testing.assert_close(
                ranks[0][f"{prefix}.reduced.{key}"], expected, atol=1e-5, rtol=0
            )
        for mode in ("exact", "reduced"):
            hidden = f"{prefix}.{mode}.hidden"
            assert all(torch.equal(rank[hidden], ranks[0][hidden]) for rank in ranks)
            assert all(f"{prefix}.{mode}.logits" not in rank for rank in ranks[1:])


def test_shards_tile_a_dimension():
    parts = [TensorParallel(rank, 4).shard(12) for rank in range(4)]
    assert [list(range(12))[part] for part in parts] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
