# pyright: strict
"""What `ps` shows of a process, and what others find in /proc: its command line, rewritten.

The kernel reads it from where it put it when the program was started, which is this process's own
memory.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

ROOM = "_" * 512  # as a last argument, for longer lines than that of the start
_FIRST_FIELD = 3  # behind the name, which may hold anything
_START, _END = 48 - _FIRST_FIELD, 49 - _FIRST_FIELD  # of the line; see proc(5)


def show(words: Sequence[str]) -> None:
    """Words that do not fit into the room there is are cut off."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    start, num_bytes = int(fields[_START]), int(fields[_END]) - int(fields[_START])
    if num_bytes <= 0:  # a kernel that does not say
        return
    line = b"".join(os.fsencode(word) + b"\0" for word in words)[: num_bytes - 1]
    ctypes.memmove(start, line.ljust(num_bytes, b"\0"), num_bytes)
