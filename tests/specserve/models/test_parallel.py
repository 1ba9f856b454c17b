import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specserve.models.parallel import TensorParallel
from tests.specserve.models.checkpoints import write_checkpoint
from tests.specserve.models.parallel_worker import CHECKPOINTS, modes, run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    for name, config in CHECKPOINTS.items():
        write_checkpoint(folder / name, config)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """What one rank computes, of every mode."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {mode: run(folder, TensorParallel(), mode) for mode in modes()}
    torch.set_num_threads(num_threads)
    return found


def run_ranks(folder: Path, size: int) -> list[dict[str, torch.Tensor]]:
    """What each of `size` processes saved."""
    module = [sys.executable, "-m", "tests.specserve.models.parallel_worker", str(folder)]
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
@pytest.mark.parametrize("size", [2, 3, 4])
def test_several_ranks_give_the_bits_of_one(folder, alone, size):
    ranks = run_ranks(folder, size)

    for mode, expected in alone.items():
        for name, tensor in expected.items():
            found = ranks[0][f"{mode}.{name}"]
            if mode.deterministic:
                assert torch.equal(found, tensor), (mode, name)
            else:
                torch.testing.assert_close(found, tensor, atol=1e-5, rtol=0)
        hidden = f"{mode}.hidden"
        assert all(torch.equal(rank[hidden], ranks[0][hidden]) for rank in ranks)
        assert all(f"{mode}.logits" not in rank for rank in ranks[1:])
