"""Whether the compiled functions of `confidence_kernels` can be had here: all are tried once."""

import functools

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu import confidence_kernels as kernels


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles everything, unless that was done before."""
    return compiled.works("confidences are made", kernels.law_features, _run_all)


def _run_all() -> None:
    """Each of them once, as it is called in earnest: another layout would be compiled again."""
    kernels.law_features(np.ones((2, 8), np.float32), np.empty((2, 2), np.float32))
