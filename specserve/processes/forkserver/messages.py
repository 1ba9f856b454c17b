# pyright: strict
"""What a supervisor and its forkserver say to each other: one JSON object a packet.

A forked process also gets a command line of its own, for those who list processes.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

MAX_PACKET_BYTES = 1 << 16
MAX_DESCRIPTORS = 253  # which go with one packet: the kernel's limit


class Preload(msgspec.Struct, frozen=True, kw_only=True):
    """To the forkserver, first of all."""

    modules: tuple[str, ...]  # whose `preload()` is called before anything is forked


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """To the forkserver, with the descriptors that the new process is to have.

    They are the ready pipe and any links, in that order; where they arrive they have other numbers,
    which the forkserver adds to `words`.
    """

    index: int
    module: str  # run as `python -m` would
    words: tuple[bytes, ...]  # its arguments, without descriptors; a path may be no text


class Born(msgspec.Struct, frozen=True, kw_only=True):
    """From the new process itself, once it is the supervisor's child."""

    index: int
    pid: int


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
