"""Selection by rank and by mass among float32 values, digit by digit of their bits; no sort.

A value's order is an integer that ascends with it. Digits are read from the highest on, and of each
only those values are looked at that the digits before it leave: three passes, however many values.
Compiled as part of who calls.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from specserve.backends.cpu import compiled

_Function = TypeVar("_Function", bound=Callable[..., object])

_SIGN, _ALL_BITS = np.int32(31), np.int32(0x7FFFFFFF)
_DIGITS = ((21, 11), (10, 11), (0, 10))  # of an order: their first bits, and how many


def _compiled(function: _Function) -> _Function:
    return compiled.compiled(function, is_kept=False)


@_compiled
def orders_of(x: np.ndarray, orders: np.ndarray) -> bool:
    """orders int64 [N] ascend as x does, from 0; False where one is no number."""
    bits, all_numbers = x.view(np.int32), True
    for i in range(len(x)):
        all_numbers &= x[i] == x[i]
        word = bits[i]
        orders[i] = np.int64(word ^ ((word >> _SIGN) & _ALL_BITS)) + np.int64(2147483648)
    return all_numbers


@_compiled
def boundary(orders: np.ndarray, num_kept: int) -> tuple[int, int]:
    """The least of the `num_kept` largest, and how many equal to it are among them."""
    least, left = 0, num_kept
    counts = np.empty(2048, np.int64)
    for first, width in _DIGITS:
        counts[:] = 0
        behind, mask = first + width, (1 << width) - 1
        above = least >> behind
        for order in orders:
            if order >> behind == above:
                counts[(order >> first) & mask] += 1
        digit = mask
        while digit > 0 and counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        least += digit << first
    return least, left


@_compiled
def boundary_of_mass(orders: np.ndarray, masses: np.ndarray, needed: float) -> int:
    """The largest order that, with all that are larger, has masses int64 [N] of `needed`.

    `needed` is no more than all of them.
    """
    least, held = 0, 0
    sums = np.empty(2048, np.int64)
    for first, width in _DIGITS:
        sums[:] = 0
        behind, mask = first + width, (1 << width) - 1
        above = least >> behind
        for i in range(len(orders)):
            if orders[i] >> behind == above:
                sums[(orders[i] >> first) & mask] += masses[i]
        digit = mask
        while digit > 0 and np.float64(held + sums[digit]) < needed:
            held += sums[digit]
            digit -= 1
        least += digit << first
    return least
