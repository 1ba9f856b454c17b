import pytest
import torch

from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint


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
