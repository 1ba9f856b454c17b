"""What calibrated confidences read of a law, compiled: torch makes twelve passes over the logits.

Arrays are contiguous. No index is checked here; who calls knows what there is.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from specserve import compiled
from specserve.compiled_sources import key_of
from specserve.noise_kernel import largest

Array = np.ndarray
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sums may be reordered, so that they are vectors; every token still has an order of its own, the
# same in any batch. What is not finite stays that.
_ARITHMETIC = {"contract", "reassoc", "arcp", "nsz"}
_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _MOST_EXPONENT, _BIAS = np.float32(-126.0), np.float32(127.0), np.int32(127)
_MANTISSA_BITS = np.int32(23)
_LEAST_GAP = np.float32(-1e4)  # of logits: a token that is impossible adds nothing


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept is below."""
    return compiled.compiled(function, _ARITHMETIC, is_kept=False)


# --- numbers -------------------------------------------------------------------------------------


@_compiled
def exp(x: np.float32) -> np.float32:
    """e**x to the last few bits, in a form that loops are vectorised with; 1e-38 to 2e38."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:  # false for NaN, which is to stay one
        scaled = _LEAST_EXPONENT
    if scaled > _MOST_EXPONENT:
        scaled = _MOST_EXPONENT
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


@_compiled
def features(logits: Array) -> tuple[np.float32, np.float32]:
    """Of a law [V]: log of its largest probability, and its entropy in nats."""
    most = largest(logits)
    total = weighted = np.float32(0)
    for i in range(len(logits)):  # by index: numba's iterators gather what lies side by side
        gap = max(logits[i] - most, _LEAST_GAP)
        weight = exp(gap)
        total += weight
        weighted += weight * gap
    log_total = np.log(total)
    return -log_total, log_total - weighted / total


def _entry(sources: int) -> Callable[[Array, Array], None]:
    """numba keeps it for what it encloses, too: these sources and no others."""

    def law_features(logits: Array, out: Array) -> None:
        """`features` of laws [N, V]: [N, 2]."""
        if sources:
            for row in range(len(logits)):
                out[row, 0], out[row, 1] = features(logits[row])

    return compiled.compiled(law_features, _ARITHMETIC)


law_features = _entry(key_of(__file__))
