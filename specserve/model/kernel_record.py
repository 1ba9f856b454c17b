"""What a compiled forward is told: arrays by address, in one record of words.

N tokens of B rows; L layers of H query heads and KV key heads of D elements, G = H / KV, this
rank's; E the hidden size. Arrays are contiguous, and float32 unless said otherwise.
"""

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Weights(NamedTuple):
    """Of L layers, this rank's share."""

    norms: Array  # [2 L + 1, E], of every part
    epsilons: Array  # [2 L + 1]
    head_norms: Array  # [L, H + KV, D], or [L, 0, D] for none
    head_epsilons: Array  # [L]
    rotary: Array  # [positions, 2, D]: cosines, signed sines
    products: Array  # int64 [L, 4, 4], as of `multiply`
    widths: Array  # int64 [L]: gates


class Code(NamedTuple):
    """Addresses of machine code, all int64."""

    rows: Array  # [storages, n] of `row_code`
    attention: Array  # [2, n]: `score_<n>` and `weigh_<n>` of `attention_code`
    others: Array  # [2]: `soften` of it, and what waits for all threads of a team


class Batch(NamedTuple):
    """What a forward computes, all int64."""

    rows: Array  # [B, 2]: new tokens, and the end of their context
    pages: Array  # [B, P]: where it is kept


class Cache(NamedTuple):
    """Keys lie in tiles, so that some of them are a vector."""

    keys: Array  # [L, KV, slots / tile, D, tile]
    values: Array  # [L, KV, slots, D]


class Room(NamedTuple):
    """What a forward is computed in. Flat ones are as large as the largest use."""

    x: Array  # [N, E] residuals
    hidden: Array  # [N, E]: x after the norm of the last part
    added: Array  # [N, >= E]: what is to be added to x
    inner: Array  # flat: what the last part ended with, [N, H * D] or [N, gates]
    wide: Array  # flat: [N, outputs of a layer's first or third product]
    queries: Array  # [KV, N, G, D]
    scores: Array  # [threads, n, keys]
    places: Array  # int64 [2, N]: positions and slots
    taps: Array  # int64 [T]: layers
    tapped: Array  # [T, N, E]: residuals behind them


class Sizes(NamedTuple):
    """Of a call."""

    first_part: int
    end_part: int
    page_size: int
    panel: int  # columns of a product's weight


ARRAY_WORDS = 6
_GROUPS = (Weights, Code, Batch, Cache, Room)
FIRST_ARRAY = 1 + len(Sizes._fields)
RECORD_WORDS = FIRST_ARRAY + ARRAY_WORDS * sum(len(group._fields) for group in _GROUPS)


class Job(NamedTuple):
    """All of it, as kernels pass it on."""

    sizes: Sizes
    weights: Weights
    code: Code
    batch: Batch
    cache: Cache
    room: Room


class Thread(NamedTuple):
    """Which of how many."""

    number: int
    team: int


class Record:
    """Words: the address of what reads them, the sizes, every array's address and shape."""

    def __init__(self, entry: int) -> None:
        self._words = np.zeros(RECORD_WORDS, np.int64)
        self._words[0] = entry
        self._kept: dict[type, tuple[Array, ...]] = {}  # what addresses are of
        self.address = self._words.ctypes.data

    def set_sizes(self, sizes: Sizes) -> None:
        self._words[1:FIRST_ARRAY] = sizes

    def set_arrays(self, arrays: Weights | Code | Batch | Cache | Room) -> None:
        """Of one kind. Raises TypeError for what is not laid out as kernels read it."""
        before = _GROUPS[: _GROUPS.index(type(arrays))]
        at = FIRST_ARRAY + ARRAY_WORDS * sum(len(group._fields) for group in before)
        for array in arrays:
            if not array.flags.c_contiguous or array.dtype not in (np.float32, np.int64):
                raise TypeError(f"kernels cannot read {array.dtype} {array.shape}")
            shape = array.shape
            self._words[at : at + 1 + len(shape)] = (array.ctypes.data, *shape)
            at += ARRAY_WORDS
        self._kept[type(arrays)] = arrays
