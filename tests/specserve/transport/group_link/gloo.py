"""Lanes over gloo, through the loopback interface: a slow stand-in for NCCL where there is no GPU.

A gloo transfer cannot be asked whether it is over, only waited for, so two threads wait.
"""

import datetime
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from specserve.transport.group_link.device_part import joined
from specserve.transport.group_link.ends import JOIN_S, Meeting
from specserve.transport.group_link.lanes import FAILURES, Lanes


class GlooTransfer:
    """A frame on its way; whoever waits for it calls `follow`."""

    def __init__(self, work: Work, entries: Tensor) -> None:
        self.began_s = time.monotonic()
        self._work = work
        self._entries = entries  # of whoever sends, too: gloo reads from it
        self._is_done = False
        self._error: Exception | None = None

    def is_done(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._is_done

    def take(self) -> Tensor:
        return self._entries

    def follow(self, timeout: datetime.timedelta) -> None:
        """Waits until it is over."""
        try:
            self._work.wait(timeout)
            self._is_done = True
        except FAILURES as error:
            self._error = error


class GlooLane:
    """One direction of a group, and the thread that waits for its transfers."""

    def __init__(self, group: ProcessGroupGloo, peer: int, tag: int, timeout_s: float) -> None:
        """A transfer that takes longer than `timeout_s` closes the whole group: gloo's way."""
        self._group, self._peer, self._tag = group, peer, tag
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._transfers: queue.SimpleQueue[GlooTransfer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name=f"gloo-{tag}", daemon=True)
        self._thread.start()

    def send(self, tensors: Sequence[Tensor], num_entries: int) -> GlooTransfer:
        entries = torch.empty(num_entries, dtype=torch.int32)
        joined(tensors, entries)
        work = self._group.send([entries], self._peer, self._tag)  # pyright: ignore[reportAttributeAccessIssue]
        return self._begun(work, entries)

    def receive(self, num_entries: int) -> GlooTransfer:
        entries = torch.empty(num_entries, dtype=torch.int32)
        work = self._group.recv([entries], self._peer, self._tag)  # pyright: ignore[reportAttributeAccessIssue]
        return self._begun(work, entries)

    def close(self) -> None:
        """Waits for the thread, and it for what is under way."""
        self._transfers.put(None)
        self._thread.join()

    def _begun(self, work: Work, entries: Tensor) -> GlooTransfer:
        transfer = GlooTransfer(work, entries)
        self._transfers.put(transfer)
        return transfer

    def _follow(self) -> None:
        while (transfer := self._transfers.get()) is not None:
            transfer.follow(self._timeout)


def join(store: Store, rank: int, join_s: float, timeouts_s: tuple[float, float]) -> Lanes:
    """A group of two of its own, never the default one; waits for the peer. Raises `FAILURES`."""
    options = ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = datetime.timedelta(seconds=join_s)
    options._threads = 1
    group = ProcessGroupGloo(PrefixStore("gloo", store), rank, 2, options)
    peer = 1 - rank
    outgoing = GlooLane(group, peer, rank, timeouts_s[0])
    incoming = GlooLane(group, peer, peer, timeouts_s[1])

    def close() -> None:
        group.abort()
        outgoing.close()
        incoming.close()

    return Lanes(outgoing, incoming, close)


@dataclass(frozen=True, slots=True)
class GlooMeeting(Meeting):
    """Over gloo, which needs no device."""

    def prepare(self) -> None:
        pass

    def open(self, store: Store, rank: int) -> Lanes:
        return join(store, rank, JOIN_S, self.timeouts_s(rank))
