# pyright: strict
"""The two ends of a link over any pair of channels: number, seal, send; receive, check, count.

Knows what frames are, not what carries them: a `Channel` is one direction of a ring, say.
Nothing here blocks, and nothing that arrives can raise. What a device has of a message goes beside
its frame, over channels that carry tensors.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from specserve.transport.link.envelope import Kind, Part, Unsound, unseal
from specserve.transport.link.frames import DevicePart, Encoded, Entries, LinkLimits
from specserve.transport.link.messages import DeviceArray, Push, Report
from specserve.transport.link.push_frames import encode_push, unpack_push
from specserve.transport.link.report_frames import encode_report, unpack_report

log = logging.getLogger(__name__)

MAX_FRAMES_A_CALL = 256  # of one `receive`; what is left waits for the next

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")


class Frame(NamedTuple):
    """One that has arrived, the reader's own."""

    data: bytearray
    device_part: DevicePart | None = None  # None: there is none, or `data` has it

    @property
    def num_bytes(self) -> int:
        return len(self.data) + (0 if self.device_part is None else self.device_part.num_bytes)


class Channel(Protocol):
    """One direction of a link, from its one writer to its one reader."""

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        """All as one frame, or nothing; False: no room. A `device_part` is for those that can."""
        ...

    def read(self) -> Frame | None:
        """The next frame; None when there is none."""
        ...

    def is_empty(self) -> bool:
        """Cheap enough to be asked between any two pieces of work."""
        ...

    def drop(self) -> None:
        """The reader forgets everything that waits."""
        ...


@dataclass(slots=True)
class LinkCounters:
    """What one end has done since it was made. Bytes are those of whole frames."""

    num_sent: int = 0
    bytes_sent: int = 0
    num_dropped: int = 0  # not sent: no room, or nobody attached
    num_received: int = 0
    bytes_received: int = 0
    num_stale: int = 0  # received sound, but of another epoch or seen before
    num_malformed: int = 0
    malformed: Counter[str] = field(default_factory=Counter[str])  # by reason


class LinkEnd(Generic[_Sent, _Received]):
    """One end. With `epoch` None nobody is attached: nothing is sent, what arrives is dropped.

    Sequence numbers start anew with every epoch, so an epoch belongs to one pair of ends.
    """

    def __init__(
        self,
        outgoing: Channel,
        incoming: Channel,
        limits: LinkLimits,
        encode: Callable[[_Sent, int, int], Encoded],
        expected: Kind,
        unpack: Callable[[memoryview, LinkLimits, Entries | None], _Received],
    ) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._limits = limits
        self._encode, self._expected, self._unpack = encode, expected, unpack
        self._epoch: int | None = None
        self._next_sent = 0
        self._next_received = 0
        self.counters = LinkCounters()

    @property
    def epoch(self) -> int | None:
        """Of the attachment whose frames count."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int | None) -> None:
        if epoch != self._epoch:
            self._epoch, self._next_sent, self._next_received = epoch, 0, 0
            self._enter(epoch)

    @property
    def carries_tensors(self) -> bool:
        """Whether what only a device reads may stay in its memory."""
        return False

    @property
    def is_broken(self) -> bool:
        """Whether nothing will pass in this epoch any more."""
        return False

    def is_empty(self) -> bool:
        """Whether `receive` would find nothing; cheap."""
        return self._incoming.is_empty()

    def close(self) -> None:
        """Nobody is attached any more; what was in use for it is let go of."""
        self.epoch = None
        self._finish()

    def reset(self) -> None:
        """Forget everything that waits to be received."""
        self._incoming.drop()

    def send(self, message: _Sent) -> bool:
        """False: dropped, there is no room or nobody is attached."""
        counters = self.counters
        if self._epoch is not None:
            frame = self._encode(message, self._epoch, self._next_sent)
            if self._outgoing.write(frame.parts, frame.device_part):
                self._next_sent += 1
                counters.num_sent += 1
                counters.bytes_sent += frame.num_bytes
                return True
        counters.num_dropped += 1
        return False

    def receive(self) -> list[_Received]:
        """Sound messages of this epoch in order of arrival, from `MAX_FRAMES_A_CALL` at most."""
        messages: list[_Received] = []
        if self._epoch is None:
            self._incoming.drop()
            return messages
        for _ in range(MAX_FRAMES_A_CALL):  # a flood must not keep the loop from its rounds
            frame = self._incoming.read()
            if frame is None:
                break
            self.counters.num_received += 1
            self.counters.bytes_received += frame.num_bytes
            message = self._open(frame)
            if message is not None:
                messages.append(message)
        return messages

    def _enter(self, epoch: int | None) -> None:
        """For ends whose way is made for one epoch."""

    def _finish(self) -> None:
        """For ends that have more to let go of than memory."""

    def _open(self, frame: Frame) -> _Received | None:
        try:
            envelope = unseal(frame.data, self._expected)
            if envelope.epoch != self._epoch or envelope.sequence < self._next_received:
                self.counters.num_stale += 1
                return None
            message = self._unpack(envelope.payload, self._limits, frame.device_part)
        except Unsound as error:
            self._reject(str(error))
            return None
        self._next_received = envelope.sequence + 1
        return message

    def _reject(self, reason: str) -> None:
        counters = self.counters
        counters.num_malformed += 1
        counters.malformed[reason] += 1
        # Powers of two only: a flood of garbage must not become a flood of log lines.
        if counters.num_malformed & (counters.num_malformed - 1) == 0:
            log.warning("dropped malformed link frame %d: %s", counters.num_malformed, reason)


class TargetLinkEnd(LinkEnd[Report, Push]):
    """The target's: sends reports, receives pushes. Nothing blocks, or raises on what arrives."""

    def __init__(self, outgoing: Channel, incoming: Channel, limits: LinkLimits) -> None:
        super().__init__(outgoing, incoming, limits, encode_report, Kind.PUSH, unpack_push)


class DraftLinkEnd(LinkEnd[Push, Report]):
    """The draft's: sends pushes, receives reports. Nothing blocks, or raises on what arrives."""

    def __init__(self, outgoing: Channel, incoming: Channel, limits: LinkLimits) -> None:
        super().__init__(outgoing, incoming, limits, encode_push, Kind.REPORT, unpack_report)
