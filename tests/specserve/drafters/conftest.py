import pytest
import torch

from tests.specserve.drafters.checkpoints import write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """The folder of a small random target and its spec."""
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def one_thread():
    """As compiled draws want it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
