"""What calibrated confidences read of a law, compiled: torch makes twelve passes over the logits.

Arrays are contiguous. No index is checked here; who calls knows what there is.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.exp32 import exp32
from specserve.backends.cpu.noise_kernel import largest

Array = np.ndarray
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sums may be reordered, so that they are vectors; every token still has an order of its own, the
# same in any batch. What is not finite stays that.
_ARITHMETIC = {"contract", "reassoc", "arcp", "nsz"}
_LEAST_GAP = np.float32(-1e4)  # of logits: a token that is impossible adds nothing


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept is below."""
    return compiled.compiled(function, _ARITHMETIC, is_kept=False)


# --- numbers -------------------------------------------------------------------------------------


exp = _compiled(exp32)


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
