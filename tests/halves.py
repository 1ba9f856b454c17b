"""Whether deterministic products with float16 weights exist on this machine."""

import functools

import torch

from specserve.model.linear import HalfLinear, Kernels, can_halve


def deterministic_halves() -> Kernels:
    cpu = torch.device("cpu")
    return Kernels(dtype=torch.float32, device=cpu, deterministic=True, half_weights=True)


@functools.cache
def has_stable_halves() -> bool:
    """True with AVX-512; without, the bits of such products depend on the batch."""
    return can_halve() and isinstance(
        deterministic_halves().linear([torch.zeros(512, 256)]), HalfLinear
    )
