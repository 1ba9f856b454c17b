# pyright: strict
"""What compiled functions have to know of a drawing: `drawing` makes it, drafters pass it on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

# The largest logit; that of logit * scale + noise * sign; `law_kernels.draw_of_likeliest`.
GREEDY, COUPLED, SAMPLED = range(3)
NO_FLOATS = np.empty(0, np.float32)


class Race(NamedTuple):
    """Draws for B blocks of G slots; what a kind has no use for is empty."""

    kind: int
    scales: Floats  # [B]
    signs: Floats  # [B]
    noise: Floats  # [D, V], or [D, M] where laws keep M tokens
    places: Integers  # [B, G]: which row of the noise a slot has

    @staticmethod
    def greedy() -> "Race":
        nothing = NO_FLOATS.reshape(0, 0)
        return Race(GREEDY, NO_FLOATS, NO_FLOATS, nothing, np.empty((0, 0), np.int64))
