"""A run whose numbers are no numbers any more ends, before it stores or exports any of them."""

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from specserve.drafters.weights import is_finite
from specserve.errors import Failed


def refuse_numbers(what: str, numbers: Iterable[float], step: int) -> None:
    """Raise Failed naming what is not finite, and after which step, unless all numbers are."""
    for number in numbers:
        if not math.isfinite(number):
            raise _diverged(f"{what} is {number}", step)


def refuse_tensors(tensors: Mapping[str, Tensor], step: int) -> None:
    """Raise Failed naming the first tensor that holds NaN or infinity, and after which step."""
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise _diverged(f"{name} holds NaN or infinity", step)


def _diverged(problem: str, step: int) -> Failed:
    way_out = "nothing is exported; --restart with a lower --rate begins anew"
    return Failed(f"training diverged, at step {step} {problem}; {way_out}")
