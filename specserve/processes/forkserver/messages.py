# pyright: strict
"""What a supervisor and its forkserver say to each other: one JSON object a packet."""

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
