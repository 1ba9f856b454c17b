"""Functions over numpy arrays compiled to machine code, where numba is installed.

Between two small matrix products torch dispatches a dozen operations, each of which costs more than
what it computes. One compiled function takes their place. Compiled once a machine and kept beside
the sources, or in the user's cache where those cannot be written.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

IS_AVAILABLE = importlib.util.find_spec("numba") is not None
# Sums may be reordered, so that they are vectors; every token still has an order of its own, the
# same in any batch. What is not finite stays that.
_ARITHMETIC = {"contract", "reassoc", "arcp", "nsz"}
_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _BIAS = np.float32(-126.0), np.int32(127)
_MANTISSA_BITS = np.int32(23)


def compiled(function: _Function) -> _Function:
    """As a decorator; without numba the function stays what it is, which is far too slow to use."""
    return _compiled(function, _ARITHMETIC)


def _compiled(function: _Function, arithmetic: set[str]) -> _Function:
    if not IS_AVAILABLE:
        return function
    from numba import njit

    options = {"fastmath": arithmetic, "error_model": "numpy", "boundscheck": False}
    try:
        return cast(_Function, njit(function, cache=True, **options))
    except RuntimeError:  # nowhere to keep it
        return cast(_Function, njit(function, **options))


@compiled
def exp(x: np.float32) -> np.float32:
    """e**x to the last few bits, in a form that loops are vectorised with; 1e-38 is the least."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:  # false for NaN, which is to stay one
        scaled = _LEAST_EXPONENT
    whole = np.floor(scaled + np.float32(0.5))
    part = scaled - whole  # -.5 to .5, and 2**part by its series
    power = np.float32(1.5403530e-4)
    power = power * part + np.float32(1.3333558e-3)
    power = power * part + np.float32(9.6181291e-3)
    power = power * part + np.float32(5.5504109e-2)
    power = power * part + np.float32(2.4022651e-1)
    power = power * part + np.float32(6.9314718e-1)
    power = power * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS)
    return power * bits.view(np.float32)


def _largest(values: np.ndarray) -> np.float32:
    """Of [N] float32, N above 0; any of them if one is no number."""
    most = values[0]
    for value in values:
        if value > most:
            most = value
    return most


# Comparisons are a vector only where nobody asks about NaN.
largest = _compiled(_largest, _ARITHMETIC | {"nnan"})
