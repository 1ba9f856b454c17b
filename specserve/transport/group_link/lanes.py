# pyright: strict
"""What `transit` asks of a way between two processes, whatever library carries it.

Nothing here waits for the peer but what says so. Whatever is out of order raises one of `FAILURES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specserve.transport.link.envelope import Part

MAX_FRAME_BYTES = 8 * 1024 * 1024  # one that is larger is not sent
MAX_MOVING = 4  # transfers of one lane at a time

# Errors of torch.distributed and CUDA are RuntimeErrors, those of stores and sockets OSErrors.
FAILURES = (RuntimeError, OSError, ValueError)


class Transfer(Protocol):
    """A frame on its way."""

    began_s: float  # CLOCK_MONOTONIC

    def is_done(self) -> bool:
        """Whether it is over; raises if it has failed. Any thread may ask."""
        ...


class Arrival(Transfer, Protocol):
    """A frame on its way here."""

    def frame(self) -> bytearray:
        """Its bytes, the caller's own, once it is done."""
        ...


class Lane(Protocol):
    """One direction. Frames arrive in the order in which they were sent, one `receive` each."""

    def send(self, parts: Sequence[Part], num_bytes: int) -> Transfer:
        """Begin to send all parts as one frame; at most `MAX_MOVING` at a time, begun in order."""
        ...

    def receive(self, num_bytes: int) -> Arrival:
        """Begin to receive the next frame, of exactly `num_bytes`; one at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Lanes:
    """Both directions between two processes that have met."""

    outgoing: Lane
    incoming: Lane
    close: Callable[[], None]  # may take as long as the longest transfer
