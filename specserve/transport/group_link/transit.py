# pyright: strict
"""Frames over a lane, announced by headers in the shared ring: the header first, then the payload.

The header of a frame goes through the ring that would carry the whole frame if the link were shared
memory. So a reader begins to receive only what it knows to be coming, with its length: a receive
posted ahead would keep a GPU busy waiting for as long as nobody sends. Nothing here waits.

    crc32    u32  of what follows
    epoch    u32  of the attachment; headers of another one are skipped
    bytes    u32  of the frame
    sequence u64  of the frame in this epoch, without gaps: who misses one cannot go on
"""

import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence

from specserve.transport.group_link.lanes import (
    MAX_FRAME_BYTES,
    MAX_MOVING,
    Arrival,
    Lane,
    Transfer,
)
from specserve.transport.link.envelope import Part
from specserve.transport.link.ring import ByteRing

MAX_WAITING = 64  # frames that have arrived and nobody has read; the rest stays with the sender
_BODY = struct.Struct("<IIQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _CRC.size + _BODY.size


class Sender:
    """The outgoing direction of one attachment; one thread writes."""

    def __init__(self, headers: ByteRing, lane: Lane, epoch: int, timeout_s: float) -> None:
        """A frame that the peer has not taken after `timeout_s` is overdue."""
        self._headers = headers
        self._lane = lane
        self._epoch = epoch
        self._timeout_s = timeout_s
        self._sequence = 0
        self._moving: deque[Transfer] = deque()

    def write(self, parts: Sequence[Part]) -> bool:
        """All parts as one frame; False if too much is under way. Raises `FAILURES`."""
        moving = self._moving
        while moving and moving[0].is_done():
            moving.popleft()
        num_bytes = sum(map(len, parts))
        if len(moving) >= MAX_MOVING or num_bytes > MAX_FRAME_BYTES:
            return False
        body = _BODY.pack(self._epoch, num_bytes, self._sequence)
        if not self._headers.write([_CRC.pack(zlib.crc32(body)), body]):
            return False
        self._sequence += 1
        moving.append(self._lane.send(parts, num_bytes))
        return True

    def is_overdue(self) -> bool:
        """Any thread may ask. Raises `FAILURES` for a transfer that has failed."""
        earliest_s = time.monotonic() - self._timeout_s
        # A tuple in one step: the writer goes on meanwhile.
        return any(not each.is_done() and each.began_s < earliest_s for each in tuple(self._moving))


class Receiver:
    """The incoming direction of one attachment. Any thread may `advance`, one takes frames."""

    def __init__(self, headers: ByteRing, lane: Lane, epoch: int, timeout_s: float) -> None:
        """A frame that has not arrived `timeout_s` after its header is overdue."""
        self._headers = headers
        self._lane = lane
        self._epoch = epoch
        self._timeout_s = timeout_s
        self._sequence = 0
        self._moving: Arrival | None = None
        self._arrived: deque[bytearray] = deque()
        self._advancing = threading.Lock()

    def has_frame(self) -> bool:
        return bool(self._arrived)

    def take(self) -> bytearray | None:
        """The next frame that has arrived."""
        return self._arrived.popleft() if self._arrived else None

    def advance(self) -> None:
        """Collect what has arrived and begin with what was announced. Raises `FAILURES`."""
        if not self._advancing.acquire(blocking=False):
            return  # another thread is at it
        try:
            while len(self._arrived) < MAX_WAITING and self._step():
                pass
        finally:
            self._advancing.release()

    def is_overdue(self) -> bool:
        """Raises `FAILURES` for a transfer that has failed."""
        moving = self._moving
        if moving is None or moving.is_done():
            return False
        return moving.began_s < time.monotonic() - self._timeout_s

    def _step(self) -> bool:
        if self._moving is None:
            record = self._headers.read()
            if record is None:
                return False
            self._open(record)
        elif self._moving.is_done():
            self._arrived.append(self._moving.frame())
            self._moving = None
        else:
            return False
        return True

    def _open(self, record: bytearray) -> None:
        body = memoryview(record)[_CRC.size :]
        if len(record) != _HEADER_BYTES or _CRC.unpack_from(record)[0] != zlib.crc32(body):
            self._arrived.append(record)  # the end counts what is no frame either
            return
        epoch, num_bytes, sequence = _BODY.unpack(body)
        if epoch != self._epoch or sequence < self._sequence:
            return  # left over, or seen before
        if sequence > self._sequence:
            raise ValueError(f"header {self._sequence} is lost")
        if not 0 < num_bytes <= MAX_FRAME_BYTES:
            raise ValueError(f"a header announces {num_bytes} bytes")
        self._sequence += 1
        self._moving = self._lane.receive(num_bytes)
