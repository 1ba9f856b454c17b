"""The best of many tokens by a race among all of them, slot by slot, compiled.

Arrays are contiguous; no index is checked here, who calls knows what there is. numba keeps the
result for the sources of all that it is made of.
"""

import functools
from collections.abc import Callable

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.noise_kernel import first_of, largest

Array = np.ndarray
NO_ROW = -1
_BLOCK = 64  # tokens of which the largest is remembered
_NOTHING = np.float32(-np.inf)


def _entry(sources: int) -> Callable[..., None]:
    """numba keeps it for what it encloses, too: these sources and no others."""

    def rank_slots(
        scores: Array, noise: Array, rows: Array, excluded: Array, found: Array, best: Array
    ) -> None:
        """found int64 [N, R] = places of the largest of scores - noise, and best what they are.

        scores [N, V]; noise [D, V], of which a slot has the row rows [N], or none; excluded [N]: a
        place that does not count, or less than 0. Of equals the first is the best; what is not
        there, or no number, is minus infinity.
        """
        if not sources:
            return
        num_slots, num_tokens = scores.shape
        num_blocks = -(-num_tokens // _BLOCK)
        values = np.full(num_blocks * _BLOCK, _NOTHING)
        most = np.empty(num_blocks, np.float32)
        for slot in range(num_slots):
            own = scores[slot]
            if rows[slot] >= 0:
                race = noise[rows[slot]]
                for token in range(num_tokens):
                    values[token] = own[token] - race[token]
            else:
                values[:num_tokens] = own
            for token in range(num_tokens):
                values[token] = values[token] if values[token] == values[token] else _NOTHING
            if excluded[slot] >= 0:
                values[excluded[slot]] = _NOTHING
            for block in range(num_blocks):
                most[block] = largest(values[block * _BLOCK : (block + 1) * _BLOCK])
            for rank in range(found.shape[1]):
                block = first_of(most, largest(most))
                part = values[block * _BLOCK : (block + 1) * _BLOCK]
                place = first_of(part, most[block])
                found[slot, rank], best[slot, rank] = block * _BLOCK + place, most[block]
                part[place] = _NOTHING
                most[block] = largest(part)

    return compiled.compiled(rank_slots)


rank_slots = _entry(key_of(__file__))


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("candidates are ranked", rank_slots, _check)


def _check() -> None:
    """ArithmeticError if they are not those of a sort."""
    rng = np.random.default_rng(0)
    scores, noise = rng.random((2, 3, 150), np.float32)
    rows, excluded = np.array([0, NO_ROW, 2]), np.array([7, -1, -1])
    found, best = np.empty((3, 9), np.int64), np.empty((3, 9), np.float32)
    rank_slots(scores, noise, rows, excluded, found, best)
    values = scores - noise * (rows >= 0)[:, None]
    values[0, 7] = _NOTHING
    if (found != np.argsort(-values, axis=1, kind="stable")[:, :9]).any():
        raise ArithmeticError(f"other candidates than by a sort: {found}")
