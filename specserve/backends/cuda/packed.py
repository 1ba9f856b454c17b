"""Small tables of a round in one tensor of 64-bit words, so that one copy brings all of them.

A copy from the host takes as long for a thousand words as for one, and a round has twenty tables.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Of one table among the words."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.int64

    @property
    def num_words(self) -> int:
        """A table begins at a whole word."""
        return -(-math.prod(self.shape) * self.dtype.itemsize // 8)


def num_words(places: Iterable[Place]) -> int:
    """Of all tables together."""
    return sum(place.num_words for place in places)


def laid_over(words: Tensor, places: Iterable[Place]) -> list[Tensor]:
    """Views of `words`, int64 [num_words], on whatever device: a table for each place, in order."""
    found: list[Tensor] = []
    start = 0
    for place in places:
        end = start + place.num_words
        elements = words[start:end].view(place.dtype)[: math.prod(place.shape)]
        found.append(elements.view(place.shape))
        start = end
    return found
