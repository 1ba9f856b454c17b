"""The outcomes of a round in order of their probability, compiled: see `plan`.

A dozen operations on arrays of some hundred numbers take ten times as long as what they compute,
and a round's first wave waits for them. Arrays are contiguous; no index is checked here.
"""

import functools

import numpy as np

from specserve.backends.cpu import compiled

Array = np.ndarray


def order_outcomes(
    weights: Array,
    recovery: Array,
    bonus: Array,
    verify_len: int,
    limits: Array,
    places: Array,
    values: Array,
) -> int:
    """values [N] = the largest of weights[k] * rate[rank], places int64 [2, N] = their k and rank.

    weights [S]; rates, which do not rise: recovery [R], or bonus [R] from k = `verify_len` on.
    limits int64 [S]: ranks that there are. Of equals the one with the smallest k, then rank, is
    first. Returns how many there are, at most N.
    """
    num_slots = len(weights)
    heads = np.zeros(num_slots, np.int64)
    for found in range(len(values)):
        best, most = -1, -1.0
        for k in range(num_slots):
            if heads[k] < limits[k]:
                rate = recovery[heads[k]] if k < verify_len else bonus[heads[k]]
                if weights[k] * rate > most:
                    best, most = k, weights[k] * rate
        if best < 0:
            return found
        places[0, found], places[1, found], values[found] = best, heads[best], most
        heads[best] += 1
    return len(values)


order_outcomes = compiled.compiled(order_outcomes)


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("outcomes are ordered", order_outcomes, _check)


def _check() -> None:
    """ArithmeticError if it is not the order of a sort."""
    weights, rates = np.array([0.5, 0.2, 0.3]), np.array([0.5, 0.3, 0.3, 0.1])
    places, values = np.empty((2, 9), np.int64), np.empty(9)
    limits = np.array([4, 2, 4])
    count = order_outcomes(weights, rates, rates, 2, limits, places, values)
    all_values = weights[:, None] * rates
    all_values[1, 2:] = -1.0
    expected = np.argsort(-all_values.ravel(), kind="stable")[:9]
    if count != 9 or (places[0] * 4 + places[1] != expected).any():
        raise ArithmeticError(f"another order than by a sort: {places}")
