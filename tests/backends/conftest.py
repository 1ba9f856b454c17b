import pytest
import torch

from specserve.backends.base import Backend
from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.torch.backend import TorchBackend
from tests.backends.chosen import CPU
from tests.device.conftest import cuda, models
from tests.device.pretended import DEVICE
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint

__all__ = ["cuda", "models"]


@pytest.fixture(autouse=True)
def one_thread():
    """The machines that run the tests have few cores, and the tests little arithmetic."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def qwen3(tmp_path):
    return load(write_checkpoint(tmp_path, QWEN3))


@pytest.fixture(params=["cpu", "cuda"])
def both(request) -> tuple[Backend, Backend]:
    """A backend and the reference, on one device; that of CUDA is pretended, where there is none.

    On a real one the same comparisons are made by tests/gpu.
    """
    if request.param == "cuda":
        request.getfixturevalue("cuda")
        return CudaGraphBackend(DEVICE), TorchBackend(DEVICE)
    if CpuBackend.why_not():
        pytest.skip(CpuBackend.why_not())
    return CpuBackend(CPU), TorchBackend(CPU)
