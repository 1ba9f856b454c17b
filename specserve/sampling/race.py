# pyright: strict
"""What compiled functions have to know of a drawing: `drawing` makes it, drafters pass it on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

# The largest logit; that of logit * scale + noise * sign; `law_kernels.draw_of_likeliest`.
GREEDY, COUPLED, SAMPLED = range(3)
NO_FLOATS = np.empty(0, np.float32)
_NO_NUMBERS = np.empty(0, np.float64)
_NO_INTEGERS = np.empty(0, np.int64)


class Listed(NamedTuple):
    """Tokens of B blocks, each with a number, one block's behind another's."""

    starts: Integers  # [B + 1]
    ids: Integers  # [N], each once a block
    values: Numbers  # [N]


class Fields(NamedTuple):
    """Requests' own fields that change the logits which B blocks are drawn from; or empty."""

    temperatures: Floats  # [B]
    cuts: Numbers  # [B, 3]: top_k, top_p and min_p; 0, 1 and 0 are off
    penalties: Numbers  # [B, 3]: repetition, frequency and presence; 1, 0 and 0 are off
    seen: Listed  # what is penalised, and how often it was generated before the block
    bias: Listed
    held: Listed  # held back in slots before its value


_NOTHING = Listed(_NO_INTEGERS, _NO_INTEGERS, _NO_NUMBERS)
_NONE = _NO_NUMBERS.reshape(0, 3)
NO_FIELDS = Fields(NO_FLOATS, _NONE, _NONE, _NOTHING, _NOTHING, _NOTHING)


class Race(NamedTuple):
    """Draws for B blocks of G slots; what a kind has no use for is empty."""

    kind: int
    scales: Floats  # [B]
    signs: Floats  # [B]
    noise: Floats  # [D, V], or [D, M] where laws keep M tokens
    places: Integers  # [B, G]: which row of the noise a slot has
    fields: Fields = NO_FIELDS

    @staticmethod
    def greedy() -> "Race":
        nothing = NO_FLOATS.reshape(0, 0)
        return Race(GREEDY, NO_FLOATS, NO_FLOATS, nothing, np.empty((0, 0), np.int64))
