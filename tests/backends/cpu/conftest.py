import pytest

from specserve.backends.cpu.machine_code import host_machine
from specserve.backends.cpu.row_kernels import row_kernels
from tests.specserve.drafters.conftest import target

__all__ = ["target"]


@pytest.fixture
def anew():
    """Whoever asks for kernels during the test makes them, and nobody has those afterwards."""
    asked = row_kernels, host_machine
    for function in asked:
        function.cache_clear()
    yield
    for function in asked:
        function.cache_clear()
