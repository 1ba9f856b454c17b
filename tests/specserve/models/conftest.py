import pytest
import torch

from specserve.backends.cpu.machine_code import host_machine
from specserve.backends.cpu.row_kernels import row_kernels
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint


@pytest.fixture(autouse=True)
def one_thread():
    """The machines that run the tests have few cores, and the tests little arithmetic."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def anew():
    """Whoever asks for kernels during the test makes them, and nobody has those afterwards."""
    asked = row_kernels, host_machine
    for function in asked:
        function.cache_clear()
    yield
    for function in asked:
        function.cache_clear()


@pytest.fixture
def qwen3(tmp_path):
    return load(write_checkpoint(tmp_path, QWEN3))
