# pyright: strict
"""What `transit` asks of a way between two devices, whatever library carries it.

Nothing here waits for the peer but what says so. Whatever is out of order raises one of `FAILURES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

MAX_ENTRIES = 2 * 1024 * 1024  # of four bytes, of a frame; one that has more is not sent
MAX_MOVING = 4  # transfers of one lane at a time
MAX_LANDED = 4  # that have arrived and nobody has taken

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

    def take(self) -> Tensor:
        """Its entries, int32 [n], the caller's own, once it is done; ends the arrival."""
        ...


class Lane(Protocol):
    """One direction. Frames arrive in the order in which they were sent, one `receive` each."""

    def send(self, tensors: Sequence[Tensor], num_entries: int) -> Transfer:
        """Begin to send all tensors as one frame; at most `MAX_MOVING` at a time, in order.

        They are read when what the calling thread asked its device for before is done, and may be
        changed by what it asks for later.
        """
        ...

    def receive(self, num_entries: int) -> Arrival:
        """Begin to receive the next frame, of exactly so many entries; one at a time.

        At most `MAX_LANDED` others may not have been taken yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lanes:
    """Both directions between two processes that have met."""

    outgoing: Lane
    incoming: Lane
    close: Callable[[], None]  # may take as long as the longest transfer
