# pyright: strict
"""What surrounds every frame of a link: who it is for, its place in the sequence, its checksum.

Knows neither what a frame says nor how it travels. Little-endian, 24 bytes, so that the arrays of
the payload stay aligned:

    crc32    u32  of everything after it, payload included
    magic    u16
    version  u8
    kind     u8
    epoch    u32  of the attachment; a frame of another one is stale
    bytes    u32  of the payload
    sequence u64  of the sender in this epoch; a frame that is not above the last one is a replay
"""

import enum
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

Part = bytes | bytearray | memoryview  # flat bytes; a frame is sent as several, joined by nobody

MAX_EPOCH = 2**32 - 1
HEADER_BYTES = 24
_MAGIC = 0x5350
_VERSION = 3
_BODY = struct.Struct("<HBBIIQ")
_CRC = struct.Struct("<I")


class Kind(enum.IntEnum):
    """What the payload holds."""

    REPORT = 1
    PUSH = 2


class Unsound(Exception):
    """A frame that is not what it should be; the text is one of a few fixed reasons.

    Never leaves this package: decoders count it and return None.
    """


class Envelope(NamedTuple):
    """A frame whose seal holds."""

    epoch: int
    sequence: int
    payload: memoryview


def seal(kind: Kind, epoch: int, sequence: int, payload: Sequence[Part]) -> list[Part]:
    """The frame, header first, as parts to be written one after the other."""
    body = _BODY.pack(_MAGIC, _VERSION, kind, epoch, sum(map(len, payload)), sequence)
    crc = zlib.crc32(body)
    for part in payload:
        crc = zlib.crc32(part, crc)
    return [_CRC.pack(crc) + body, *payload]


def unseal(frame: Part, kind: Kind) -> Envelope:
    """The inside of `frame`, not copied.

    Raises:
        Unsound: wrong length, magic, version, kind or checksum.
    """
    if len(frame) < HEADER_BYTES:
        raise Unsound("shorter than its header")
    magic, version, found, epoch, num_bytes, sequence = _BODY.unpack_from(frame, _CRC.size)
    if magic != _MAGIC or version != _VERSION:
        raise Unsound("wrong magic or version")
    if found != kind:
        raise Unsound("wrong kind")
    if num_bytes != len(frame) - HEADER_BYTES:
        raise Unsound("wrong length")
    view = memoryview(frame)
    if zlib.crc32(view[_CRC.size :]) != _CRC.unpack_from(frame)[0]:
        raise Unsound("checksum differs")
    return Envelope(epoch, sequence, view[HEADER_BYTES:])
