"""Whether the compiled functions of `draft_node.kernels` can be had here: all are tried once."""

import functools

import numpy as np
import torch

from draft_node import kernels
from specserve import compiled
from specserve.model.row_code import Storage
from specserve.model.row_kernels import row_kernels


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles everything, unless that was done before."""
    return compiled.works("drafts are made", kernels.make_pass, _run_all)


def _run_all() -> None:
    """Each of them once, as it is called in earnest: another layout would be compiled again."""
    kernels.law_features(np.ones((2, 8), np.float32), np.empty((2, 2), np.float32))
    rows = row_kernels(Storage.FLOAT32)
    if rows is None:
        return  # then no pass is made
    num_heads, size, hidden, width = 2, 8, 16, 8
    packed = [
        rows.pack(torch.ones(out_size, in_size))
        for out_size, in_size in (
            (4 * size, hidden),
            (hidden, 16),
            (2 * width, hidden),
            (hidden, 8),
        )
    ]
    products = [[w.data_ptr(), w.shape[1], w.shape[0], 0] for w in packed]
    kept = np.zeros((1, 1, 2 * kernels.KEYS, size), np.float32)
    kernels.make_pass(
        np.zeros(2, np.int64),
        np.array([[0, 1], [0, 0], [1, 1], [0, 0]]),
        kernels.Weights(
            embedding=np.ones((1, hidden), np.float32),
            norms=np.ones((3, hidden), np.float32),
            epsilons=np.ones(3, np.float32),
            head_norms=np.ones((1, num_heads + 1, size), np.float32),
            head_epsilons=np.ones(1, np.float32),
            rotary=np.ones((2, 2, size), np.float32),
            products=np.array([products]),
            blocks=np.array([rows.addresses]),
            sizes=(num_heads, width, rows.panel),
        ),
        np.ones((1, 1), dtype=np.int64),
        kernels.KEYS,
        (kept, kept.copy()),
        np.zeros((1, 2, 1, 1, 2, size), np.float32),
    )
