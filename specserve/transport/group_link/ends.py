"""The two ends of a link that carries tensors from device to device, and how they meet.

What the host reads of frames, pid, epoch and heartbeat stay in the shared region. Both sides meet
in a file of their own for every epoch, beside the sockets of the control plane, so that no port is
needed for it.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store

from specserve.transport.group_link import nccl
from specserve.transport.group_link.attachment import Attachment
from specserve.transport.group_link.lanes import Lanes
from specserve.transport.link.ends import DraftLinkEnd, Frame, TargetLinkEnd
from specserve.transport.link.envelope import Part
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import DeviceArray
from specserve.transport.link.ring import ByteRing, SharedRegion

TARGET, DRAFT = 0, 1  # ranks
JOIN_S = 10.0  # a peer that has not come by then does not come; a new epoch asks again
_MEET_POLL_S = 0.01
_DAY_S = 86_400.0
_CLOSE_S = 3.0  # threads that last longer end with the process


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and how the two ends of one link meet: over NCCL, unless a subclass says otherwise."""

    folder: Path  # that both know; nobody else may write there
    draft: int
    device: torch.device  # of this process
    timeout_s: float  # a draft may be silent for

    def prepare(self) -> None:
        """Before anything of torch.distributed is made."""
        nccl.prepare()

    def join(self, rank: int, epoch: int, is_over: Callable[[], bool]) -> Lanes:
        """Waits for the peer to come to the same epoch. Raises `lanes.FAILURES`."""
        path = self.folder / f"link_{self.draft}_{epoch}"
        try:
            store = FileStore(str(path), -1)
            self._await_peer(store, rank, is_over)
            return self.open(store, rank)
        finally:
            if rank == TARGET:
                self._tidy(epoch)

    def open(self, store: Store, rank: int) -> Lanes:
        """The way to a peer that is there. Raises `lanes.FAILURES`."""
        return nccl.join(store, rank, self.device, JOIN_S)

    def timeouts_s(self, rank: int) -> tuple[float, float]:
        """For a frame out and a frame in. The target reads only when it has rounds."""
        return (self.timeout_s if rank == TARGET else _DAY_S), self.timeout_s

    def _await_peer(self, store: Store, rank: int, is_over: Callable[[], bool]) -> None:
        """Before the group is made, which cannot be called off."""
        store.set(f"here {rank}", "1")
        deadline_s = time.monotonic() + JOIN_S
        while not store.check([f"here {1 - rank}"]):
            if is_over() or time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody came within {JOIN_S:g} s")
            time.sleep(_MEET_POLL_S)

    def _tidy(self, epoch: int) -> None:
        """Files of epochs before this one, which the draft has left long ago or never will."""
        for path in self.folder.glob(f"link_{self.draft}_*"):
            if int(path.name.rpartition("_")[2]) < epoch:
                path.unlink(missing_ok=True)


class _Way:
    """What is written goes to the peer, what is read came from it; a `Channel` for both."""

    def __init__(self, meeting: Meeting, rank: int, outgoing: ByteRing, incoming: ByteRing) -> None:
        meeting.prepare()
        self._meeting, self._rank = meeting, rank
        self._rings = outgoing, incoming
        self._attachment: Attachment | None = None
        self._left: list[Attachment] = []

    @property
    def is_broken(self) -> bool:
        return self._attachment is not None and self._attachment.is_broken

    def enter(self, epoch: int | None) -> None:
        if self._attachment is not None:
            self._attachment.leave()
            self._left = [each for each in (*self._left, self._attachment) if not each.wait(0)]
            self._attachment = None
        if epoch is not None:
            join = functools.partial(self._meeting.join, self._rank, epoch)
            timeouts_s = self._meeting.timeouts_s(self._rank)
            self._attachment = Attachment(epoch, join, self._rings, timeouts_s)

    def wait(self) -> None:
        """For the threads of what has been left, at most `_CLOSE_S` together."""
        deadline_s = time.monotonic() + _CLOSE_S
        for attachment in self._left:
            attachment.wait(max(0.0, deadline_s - time.monotonic()))

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        tensors = cast("Sequence[Tensor]", device_part)  # here they are no others
        return self._attachment is not None and self._attachment.write(parts, tensors)

    def read(self) -> Frame | None:
        return None if self._attachment is None else self._attachment.read()

    def is_empty(self) -> bool:
        return self._attachment is None or self._attachment.is_empty()

    def drop(self) -> None:
        while self.read() is not None:
            pass


class _ByGroup:
    """What both ends do about their way."""

    _way: _Way

    @property
    def carries_tensors(self) -> bool:
        return True

    @property
    def is_broken(self) -> bool:
        return self._way.is_broken

    def _enter(self, epoch: int | None) -> None:
        self._way.enter(epoch)

    def _finish(self) -> None:
        self._way.wait()


class GroupTargetEnd(_ByGroup, TargetLinkEnd):
    """The target's end."""

    def __init__(self, region: SharedRegion, limits: LinkLimits, meeting: Meeting) -> None:
        self._way = _Way(meeting, TARGET, region.to_draft, region.to_target)
        super().__init__(self._way, self._way, limits)


class GroupDraftEnd(_ByGroup, DraftLinkEnd):
    """The draft's end."""

    def __init__(self, region: SharedRegion, limits: LinkLimits, meeting: Meeting) -> None:
        self._way = _Way(meeting, DRAFT, region.to_target, region.to_draft)
        super().__init__(self._way, self._way, limits)
