# pyright: strict
"""A link through memory that two processes share: two byte rings and a page of words.

Knows bytes and records, not what they mean. The memory is anonymous (memfd): the supervisor creates
it and both processes inherit the descriptor, so there is no name to guess and nothing to clean up.

Each ring has one writer and one reader and no lock. `head` counts the bytes ever written, `tail`
those ever read, both modulo 2**64; only the writer stores head, only the reader stores tail. The
writer stores the record first and head last; the reader loads head first and the record after it.
On x86 that is enough: stores become visible in the order in which they were made, loads are not
reordered with loads nor a store with a load before it, an aligned 8-byte word is never torn, and
the interpreter's calls keep the compiler from moving any of them. A writer killed half-way has not
stored head: nothing of the record exists. Where memory is ordered less strictly, or somebody
scribbles, a reader may see bytes that are not a record; the frame's checksum then says so, and a
length or a distance that cannot be makes the reader drop everything up to head. What follows is
sound again.

A record is a u64 length and as many bytes, padded to 8; it wraps around at the end of the ring.
"""

import fcntl
import mmap
import os
from collections.abc import Sequence

from specserve.errors import Unavailable
from specserve.transport.link.ends import DraftLinkEnd, Frame, TargetLinkEnd
from specserve.transport.link.envelope import Part
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import DeviceArray

DEFAULT_RING_BYTES = 8 * 1024 * 1024
MIN_RING_BYTES = 64
_HEADER_BYTES = 4096
_MAGIC = 0x314B4E494C435053
_VERSION = 1
_WORD_BITS = 2**64 - 1
_ALIGNED = _WORD_BITS & ~7
# Words of the header, by index; what one process writes is alone in its cache line.
_AT_MAGIC, _AT_VERSION, _AT_RING_BYTES = 0, 1, 2
_AT_HEARTBEAT, _AT_PID, _AT_EPOCH = 8, 16, 17
_AT_TO_DRAFT, _AT_TO_TARGET = 32, 48  # head; the tail is one line further
_LINE_WORDS = 8


class ByteRing:
    """One direction. Make one per process; only its reader may `read` and `drop`."""

    def __init__(self, words: memoryview, at_head: int, data: memoryview) -> None:
        self._words = words  # u64, the header's
        self._at_head, self._at_tail = at_head, at_head + _LINE_WORDS
        self._data = data
        self._lengths = data.cast("Q")
        self.capacity = len(data)  # a power of two
        self._mask = self.capacity - 1
        self.num_resets = 0  # times the reader found nonsense

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._words[self._at_head] == self._words[self._at_tail]

    def write(self, parts: Sequence[Part]) -> bool:
        """All parts as one record, or nothing: False when there is no room."""
        num_bytes = sum(map(len, parts))
        head = self.head
        # Beyond capacity the counters are nonsense, which is the reader's to mend: no room.
        used = (head - self.tail) & _WORD_BITS
        if used + _record_bytes(num_bytes) > self.capacity:
            return False
        self._lengths[(head & self._mask) >> 3] = num_bytes
        at = head + 8
        for part in parts:
            self._put(at & self._mask, part)
            at += len(part)
        self._words[self._at_head] = self.after(head, num_bytes)
        return True

    def read(self) -> bytearray | None:
        """The next record, copied out of the ring; None when there is none."""
        head, tail = self.head, self.tail
        if head == tail:
            return None
        record = self.record(tail, head)
        if record is None:
            self.num_resets += 1
            self._words[self._at_tail] = head
            return None
        self._words[self._at_tail] = self.after(tail, len(record))
        return record

    def drop(self) -> None:
        """Forget everything that waits."""
        self._words[self._at_tail] = self.head

    @property
    def head(self) -> int:
        """Bytes ever written; a scribbled word is taken as the aligned one below it."""
        return self._words[self._at_head] & _ALIGNED

    @property
    def tail(self) -> int:
        """Bytes ever read."""
        return self._words[self._at_tail] & _ALIGNED

    def record(self, at: int, head: int) -> bytearray | None:
        """A copy of the record that starts at `at`; None if there can be none up to `head`."""
        available = (head - at) & _WORD_BITS
        if not 8 < available <= self.capacity:
            return None
        num_bytes = self._lengths[(at & self._mask) >> 3]
        if not 0 < num_bytes <= available - 8:
            return None
        start = (at + 8) & self._mask
        record = bytearray(self._data[start : start + num_bytes])
        if len(record) < num_bytes:
            record += self._data[: num_bytes - len(record)]
        return record

    @staticmethod
    def after(at: int, num_bytes: int) -> int:
        """Where the record behind the one of `num_bytes` at `at` starts."""
        return (at + _record_bytes(num_bytes)) & _WORD_BITS

    def _put(self, start: int, part: Part) -> None:
        end = start + len(part)
        if end <= self.capacity:
            self._data[start:end] = part
        else:
            split = self.capacity - start
            view = memoryview(part)
            self._data[start:] = view[:split]
            self._data[: end - self.capacity] = view[split:]

    def release(self) -> None:
        """Let go of the memory; the ring is of no use afterwards."""
        self._lengths.release()
        self._data.release()


def _record_bytes(num_bytes: int) -> int:
    return 8 + (num_bytes + 7) // 8 * 8


class SharedRegion:
    """The memory of one link as one process sees it."""

    def __init__(self, memory: mmap.mmap, ring_bytes: int) -> None:
        self._memory = memory
        self._view = memoryview(memory)
        self._words = self._view[:_HEADER_BYTES].cast("Q")
        middle = _HEADER_BYTES + ring_bytes
        self.to_draft = ByteRing(self._words, _AT_TO_DRAFT, self._view[_HEADER_BYTES:middle])
        self.to_target = ByteRing(self._words, _AT_TO_TARGET, self._view[middle:])

    @staticmethod
    def create(ring_bytes: int = DEFAULT_RING_BYTES) -> int:
        """A descriptor of fresh memory with two rings of `ring_bytes`, a power of two.

        It is closed on exec; name it in `pass_fds` to let a child inherit it.
        """
        if ring_bytes < MIN_RING_BYTES or ring_bytes & (ring_bytes - 1):
            raise ValueError(f"ring_bytes: {ring_bytes} is no power of two from {MIN_RING_BYTES}")
        fd = os.memfd_create("specserve-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _HEADER_BYTES + 2 * ring_bytes)
        # Nobody can shrink it under the other process, which would be killed by its next access.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        with mmap.mmap(fd, _HEADER_BYTES) as memory, memoryview(memory).cast("Q") as words:
            words[_AT_VERSION], words[_AT_RING_BYTES] = _VERSION, ring_bytes
            words[_AT_MAGIC] = _MAGIC
        return fd

    @staticmethod
    def attach(fd: int) -> "SharedRegion":
        """The region behind `fd`, which stays the caller's to close.

        Raises:
            Unavailable: it is no such memory, or of another version.
        """
        num_bytes = os.fstat(fd).st_size
        if num_bytes <= _HEADER_BYTES:
            raise Unavailable(f"link: descriptor {fd} has {num_bytes} bytes and holds no link")
        # Pages are made now: the first round must not pay for them.
        memory = mmap.mmap(fd, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        with memoryview(memory).cast("B") as view, view[:_HEADER_BYTES].cast("Q") as words:
            magic, version, ring_bytes = words[_AT_MAGIC], words[_AT_VERSION], words[_AT_RING_BYTES]
        if (magic, version) != (_MAGIC, _VERSION) or num_bytes != _HEADER_BYTES + 2 * ring_bytes:
            memory.close()
            raise Unavailable(f"link: descriptor {fd} holds no link of version {_VERSION}")
        return SharedRegion(memory, ring_bytes)

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC of the draft's last sign of life; 0: none yet."""
        return self._words[_AT_HEARTBEAT]

    @heartbeat_ns.setter
    def heartbeat_ns(self, now_ns: int) -> None:
        self._words[_AT_HEARTBEAT] = now_ns

    @property
    def draft_pid(self) -> int:
        """Of the draft that attached last; 0: none yet, or it is leaving."""
        return self._words[_AT_PID]

    @draft_pid.setter
    def draft_pid(self, pid: int) -> None:
        self._words[_AT_PID] = pid

    @property
    def draft_epoch(self) -> int:
        """The epoch that the draft works in; 0: none yet."""
        return self._words[_AT_EPOCH]

    @draft_epoch.setter
    def draft_epoch(self, epoch: int) -> None:
        self._words[_AT_EPOCH] = epoch

    def close(self) -> None:
        """Unmap; ends over this region are of no use afterwards."""
        self.to_draft.release()
        self.to_target.release()
        self._words.release()
        self._view.release()
        self._memory.close()


class RingChannel:
    """A ring as a `Channel`: a record a frame, with all that a device reads in it."""

    def __init__(self, ring: ByteRing) -> None:
        self._ring = ring
        self.is_empty, self.drop = ring.is_empty, ring.drop

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        """False when there is no room."""
        assert not device_part, "a ring is host memory"
        return self._ring.write(parts)

    def read(self) -> Frame | None:
        """The next record."""
        record = self._ring.read()
        return None if record is None else Frame(record)


class RingTargetEnd(TargetLinkEnd):
    """The target's end of a region."""

    def __init__(self, region: SharedRegion, limits: LinkLimits) -> None:
        super().__init__(RingChannel(region.to_draft), RingChannel(region.to_target), limits)


class RingDraftEnd(DraftLinkEnd):
    """The draft's end of a region."""

    def __init__(self, region: SharedRegion, limits: LinkLimits) -> None:
        super().__init__(RingChannel(region.to_target), RingChannel(region.to_draft), limits)
