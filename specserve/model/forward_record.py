"""A job's arrays by address, in one array of words, as `layer_kernels.entry` reads them."""

import numpy as np

from specserve.model.forward_job import Array, Batch, Cache, Code, Room, Sizes, Tokens, Weights
from specserve.model.layer_kernels import ARRAY_WORDS, FIRST_ARRAY, GROUPS, RECORD_WORDS

_KINDS = np.dtype(np.float32).char + np.dtype(np.int64).char


class Record:
    """Words: the address of what reads them, the sizes, every array's address and shape."""

    def __init__(self, entry: int) -> None:
        self._words = np.zeros(RECORD_WORDS, np.int64)
        self._words[0] = entry
        self._kept: dict[type, tuple[Array, ...]] = {}  # what addresses are of
        self.address = self._words.ctypes.data

    def set_sizes(self, sizes: Sizes) -> None:
        self._words[1:FIRST_ARRAY] = sizes

    def set_arrays(self, arrays: Weights | Code | Batch | Cache | Tokens | Room) -> None:
        """Of one kind. Raises TypeError for what is not laid out as kernels read it."""
        before = GROUPS[: GROUPS.index(type(arrays))]
        at = FIRST_ARRAY + ARRAY_WORDS * sum(len(group._fields) for group in before)
        for array in arrays:
            if not array.flags.c_contiguous or array.dtype.char not in _KINDS:
                raise TypeError(f"kernels cannot read {array.dtype} {array.shape}")
            address, _ = array.__array_interface__["data"]  # `ctypes.data` takes twice as long
            self._words[at : at + 1 + array.ndim] = (address, *array.shape)
            at += ARRAY_WORDS
        self._kept[type(arrays)] = arrays
