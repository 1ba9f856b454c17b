"""What processes on this machine's CPU compute with."""

from importlib.util import find_spec

import torch

from specserve.backends.choose import choose_backend
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.row_kernels import row_kernels

CPU = torch.device("cpu")
BACKEND = choose_backend(CPU)


def can_compile() -> bool:
    """Whether there is all that compiled forwards need, whatever the self-test says of them."""
    return find_spec("numba") is not None and row_kernels(Storage.FLOAT32) is not None
