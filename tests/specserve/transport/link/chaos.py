# pyright: strict
"""Faults on purpose: what a failing sender, or a stranger with the memory mapped, could write.

For tests and chaos runs. Everything follows from a seed, so a run that found something repeats.
"""

import random
import struct
import zlib
from collections import deque
from collections.abc import Callable

from specserve.transport.link.envelope import HEADER_BYTES, MAX_EPOCH
from specserve.transport.link.ring import ByteRing

_MAX_NOISE_BYTES = 512
_MAX_REMEMBERED = 64


_CRC_BYTES, _EPOCH = 4, slice(8, 12)  # of a header: see `specserve.transport.link.envelope`


def restamp(frame: bytes, epoch: int) -> bytes:
    """The same frame, soundly sealed, of another epoch: what a sender of the past would send."""
    changed = bytearray(frame)
    changed[_EPOCH] = struct.pack("<I", epoch)
    changed[:_CRC_BYTES] = struct.pack("<I", zlib.crc32(changed[_CRC_BYTES:]))
    return bytes(changed)


class Corruptor:
    """Makes bad frames, from nothing or out of good ones."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def noise(self) -> bytes:
        """Random bytes, of any length from one."""
        return self._source.randbytes(self._source.randint(1, _MAX_NOISE_BYTES))

    def flipped(self, frame: bytes) -> bytes:
        """`frame` with one bit changed."""
        bit = self._source.randrange(len(frame) * 8)
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    def cut(self, frame: bytes) -> bytes:
        """`frame` without its end."""
        return frame[: self._source.randint(1, len(frame) - 1)]

    def extended(self, frame: bytes) -> bytes:
        """`frame` and more."""
        return frame + self.noise()

    def gutted(self, frame: bytes) -> bytes:
        """The header of `frame` over random bytes."""
        return frame[:HEADER_BYTES] + self._source.randbytes(len(frame) - HEADER_BYTES)

    def stale(self, frame: bytes) -> bytes:
        """`frame` as a sender of some other epoch would have sealed it."""
        return restamp(frame, self._source.randint(0, MAX_EPOCH))

    def replayed(self, frame: bytes) -> bytes:
        """`frame` once more."""
        return frame


class RingInjector:
    """A second writer on one ring, which a ring is not made for; that is the point.

    It replays and mutilates the frames it has seen. If it writes at the same moment as the ring's
    own writer, either may overwrite the other: the reader must cope with that as well.
    """

    def __init__(self, ring: ByteRing, seed: int) -> None:
        self._ring = ring
        self._source = random.Random(seed)
        self._corruptor = Corruptor(self._source)
        self._seen: deque[bytes] = deque(maxlen=_MAX_REMEMBERED)
        self._cursor = ring.head

    def watch(self) -> int:
        """Copy the frames written since the last call, as far as they are still there; how many."""
        head = self._ring.head
        num_seen = 0
        while self._cursor != head:
            record = self._ring.record(self._cursor, head)
            if record is None:
                self._cursor = head
                break
            self._cursor = self._ring.after(self._cursor, len(record))
            if len(record) > HEADER_BYTES:
                self._seen.append(bytes(record))
                num_seen += 1
        return num_seen

    def inject(self, count: int) -> int:
        """Write up to `count` bad frames; how many found room."""
        self.watch()
        num_written = sum(self._ring.write([self._bad_frame()]) for _ in range(count))
        self._cursor = self._ring.head  # what it wrote itself is no frame to learn from
        return num_written

    def _bad_frame(self) -> bytes:
        corruptor = self._corruptor
        if not self._seen or self._source.random() < 0.2:
            return corruptor.noise()
        kinds: tuple[Callable[[bytes], bytes], ...] = (
            corruptor.flipped,
            corruptor.cut,
            corruptor.extended,
            corruptor.gutted,
            corruptor.stale,
            corruptor.replayed,
        )
        return self._source.choice(kinds)(self._source.choice(self._seen))
