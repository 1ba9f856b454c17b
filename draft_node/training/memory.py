"""Allocator settings for CPU training."""

import ctypes
import ctypes.util

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make glibc keep large freed blocks instead of returning them to the system.

    A training step allocates and frees gigabytes of activations, and taking each page fault anew is
    slow, most of all in virtual machines. Measured only roughly (other work was running): 2,100
    tokens/s without, 5,000 with.
    """
    library = ctypes.util.find_library("c")
    mallopt = getattr(ctypes.CDLL(library), "mallopt", None) if library else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
