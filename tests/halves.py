"""Products with 16-bit weights, as far as this machine has them."""

import functools

import torch

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
