# pyright: strict
"""Frames whose device part goes over a lane, announced by what goes through the shared ring first.

The ring is the one that would carry the whole frame if the link were shared memory; here a record
of it is a header and what the host reads of the frame. So a reader begins to receive only what it
knows to be coming, with its length: a receive posted ahead would keep a GPU busy waiting for as
long as nobody sends. A frame without a device part is there with its record. Nothing here waits.

    crc32    u32  of the rest of the header
    epoch    u32  of the attachment; headers of another one are skipped
    entries  u32  of the device part
    sequence u64  of the frame in this epoch, without gaps: who misses one cannot go on
"""

import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence

from torch import Tensor

from specserve.transport.group_link.device_part import TensorEntries
from specserve.transport.group_link.lanes import (
    MAX_ENTRIES,
    MAX_LANDED,
    MAX_MOVING,
    Arrival,
    Lane,
    Transfer,
)
from specserve.transport.link.ends import Frame
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

    def write(self, parts: Sequence[Part], device_part: Sequence[Tensor] = ()) -> bool:
        """All as one frame; False if too much is under way. Raises `FAILURES`."""
        moving = self._moving
        while moving and moving[0].is_done():
            moving.popleft()
        num_entries = sum(tensor.numel() for tensor in device_part)
        if num_entries and (len(moving) >= MAX_MOVING or num_entries > MAX_ENTRIES):
            return False
        body = _BODY.pack(self._epoch, num_entries, self._sequence)
        if not self._headers.write([_CRC.pack(zlib.crc32(body)), body, *parts]):
            return False
        self._sequence += 1
        if num_entries:
            moving.append(self._lane.send(device_part, num_entries))
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
        self._moving: tuple[bytearray, Arrival] | None = None
        self._arrived: deque[tuple[bytearray, Arrival | None]] = deque()
        self._advancing = threading.Lock()

    def has_frame(self) -> bool:
        return bool(self._arrived)

    def take(self) -> Frame | None:
        """The next frame that has arrived. Raises `FAILURES`."""
        if not self._arrived:
            return None
        # Its place is free once this returns, and what is received into it waits for the copy.
        data, arrival = self._arrived[0]
        entries = None if arrival is None else TensorEntries(arrival.take())
        self._arrived.popleft()
        return Frame(data, entries)

    def advance(self) -> None:
        """Collect what has arrived and begin with what was announced. Raises `FAILURES`."""
        if not self._advancing.acquire(blocking=False):
            return  # another thread is at it
        try:
            while self._has_room() and self._step():
                pass
        finally:
            self._advancing.release()

    def is_overdue(self) -> bool:
        """Raises `FAILURES` for a transfer that has failed."""
        moving = self._moving
        if moving is None or moving[1].is_done():
            return False
        return moving[1].began_s < time.monotonic() - self._timeout_s

    def _has_room(self) -> bool:
        arrived = tuple(self._arrived)  # in one step: the reader takes some meanwhile
        num_landed = sum(arrival is not None for _, arrival in arrived)
        return len(arrived) < MAX_WAITING and num_landed < MAX_LANDED

    def _step(self) -> bool:
        if self._moving is None:
            record = self._headers.read()
            if record is None:
                return False
            self._open(record)
        elif self._moving[1].is_done():
            self._arrived.append(self._moving)
            self._moving = None
        else:
            return False
        return True

    def _open(self, record: bytearray) -> None:
        body = memoryview(record)[_CRC.size : _HEADER_BYTES]
        if len(record) < _HEADER_BYTES or _CRC.unpack_from(record)[0] != zlib.crc32(body):
            self._arrived.append((record, None))  # the end counts what is no frame either
            return
        epoch, num_entries, sequence = _BODY.unpack(body)
        if epoch != self._epoch or sequence < self._sequence:
            return  # left over, or seen before
        if sequence > self._sequence:
            raise ValueError(f"header {self._sequence} is lost")
        if num_entries > MAX_ENTRIES:
            raise ValueError(f"a header announces {num_entries} entries")
        self._sequence += 1
        data = record[_HEADER_BYTES:]
        if num_entries:
            self._moving = data, self._lane.receive(num_entries)
        else:
            self._arrived.append((data, None))
