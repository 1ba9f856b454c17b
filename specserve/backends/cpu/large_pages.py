# pyright: strict
"""Memory in the system's large pages, for what every forward reads.

Pages of 4 KiB cost a look-up each 64 lines, in a virtual machine one of many steps, and end what a
processor fetches ahead by itself. Weights and caches in pages of 2 MiB are read up to a quarter
faster. Where the system has no large pages the memory is as any other.
"""

import math
import mmap
import threading

import torch
from torch import Tensor

_PAGE_BYTES = 2 << 20
_CHUNK_BYTES = 16 * _PAGE_BYTES
_LINE_BYTES = 64


def large_zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor in large pages of its own, which the system gives when they are written."""
    size = math.prod(shape) * dtype.itemsize
    return _untouched(size)[:size].view(dtype).view(shape)


class Arena:
    """Lays small tensors side by side, so that they share large pages.

    Memory goes back to the system when all tensors that share it are gone, but for the latest.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // _LINE_BYTES) * _LINE_BYTES
        with self._lock:
            if taken > len(self._rest):
                self._rest = _untouched(max(taken, _CHUNK_BYTES))
            own, self._rest = self._rest[:size], self._rest[taken:]
        return own.view(dtype).view(shape)


def _untouched(size: int) -> Tensor:
    """uint8 [>= size], zeros, at the beginning of a page."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    whole = -(-size // _PAGE_BYTES) * _PAGE_BYTES
    memory = mmap.mmap(-1, whole + _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a system built without them
            pass
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    first = -flat.data_ptr() % _PAGE_BYTES
    return flat[first : first + whole]
