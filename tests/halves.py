"""Whether deterministic products with 16-bit weights exist on this machine."""

import functools

import torch

from specserve.errors import Unsupported
from specserve.models.linear import HalfLinear, Kernels


def deterministic_halves() -> Kernels:
    cpu = torch.device("cpu")
    return Kernels(dtype=torch.float32, device=cpu, deterministic=True, half_weights=True)


@functools.cache
def has_fbgemm() -> bool:
    """Whether this build has products with float16 weights of its own."""
    try:
        HalfLinear(torch.zeros(16, 16))(torch.zeros(1, 16))
    except RuntimeError:
        return False
    return True


@functools.cache
def has_stable_halves() -> bool:
    """Compiled products are stable; fbgemm's with AVX-512 only."""
    kernels = deterministic_halves()
    kernels.linear([torch.zeros(512, 256)])
    try:
        kernels.check_halved()
    except Unsupported:
        return False
    return True
