"""The draft processes as the target sees them: who is attached, since when, who owns which request.

Attaching gives a draft an epoch that nobody had before; what carries another epoch is dropped. A
draft is gone when its process has ended (its pidfd tells at once, where it runs on this machine),
when it says that it is about to, or when its loop has been silent for longer than the deadline.
Knows no tokens. Nothing here blocks.
"""

import hashlib
import logging
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.drafters.draft_times import DraftTimes
from specserve.transport.control.draft_control import (
    Attach,
    Attached,
    DraftControlTarget,
    Free,
    ToDraft,
    Wanted,
)
from specserve.transport.link.ends import TargetLinkEnd
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import Push
from specserve.transport.link.words import DraftWords
from specserve.types import DraftReport
from target_node.planning.draft_pace import DraftPace

log = logging.getLogger(__name__)

_POLL_PERIOD_S = 0.02  # between looks at heartbeats
# From attaching to the draft's work in that epoch; else it has not heard of it. A broken link is
# not made again sooner either.
_ANSWER_S = 0.5
_FAR = -1  # no pidfd: a process of another machine


@dataclass(eq=False)
class DraftPeer:
    """One draft process, attached or not."""

    index: int
    end: TargetLinkEnd
    words: DraftWords
    is_here: bool = True  # on this machine
    epoch: int = 0  # 0: not attached
    pidfd: int = _FAR
    attached_s: float = 0.0
    detached_s: float = 0.0
    replaced_s: float = 0.0  # another process came before anybody saw that this one was gone
    introduction: Attach | None = None  # of a process that is there, attached or silent


class DraftLinks:
    """All draft processes of a launch."""

    def __init__(
        self,
        peers: Sequence[DraftPeer],
        control: DraftControlTarget,
        *,
        limits: LinkLimits,
        drafter: str,
        timeout_s: float,
    ) -> None:
        """`limits` is what a draft must fit to be let in; one may be silent for `timeout_s`."""
        self.gamma = limits.gamma
        self.drafter = drafter
        self._limits = limits
        self._timeout_s = timeout_s
        self._control = control
        self._peers = list(peers)
        self._last_epoch = 0
        self._times = DraftTimes()
        self._introduced: Attach | None = None  # whose times these are
        self.pace = DraftPace(self._timed)  # of the drafts' batches
        self._wanted: list[Wanted] = []
        self._misfits: set[int] = set()  # drafts that did not fit when they came last
        self._polled_s = 0.0
        self._next_look_s = 0.0
        self._ends = select.epoll()  # of processes: their pidfds

    @property
    def num_processes(self) -> int:
        return len(self._peers)

    @property
    def carry_tensors(self) -> bool:
        """Whether what drafts read on their device may stay on this one's until it is sent."""
        return all(peer.end.carries_tensors for peer in self._peers)

    @property
    def num_attached(self) -> int:
        return sum(peer.epoch > 0 for peer in self._peers)

    def _timed(self) -> DraftTimes:
        """By one of those that are there; none before."""
        known = [peer.introduction for peer in self._peers if peer.introduction is not None]
        if known and known[-1] is not self._introduced:
            self._introduced = known[-1]
            self._times = DraftTimes(self._introduced.times, self._introduced.enter_s)
            self.pace.forget()
        return self._times

    @property
    def reports(self) -> list[DraftReport]:
        """Of each draft process: whether it is attached, and bytes of frames since start."""
        return [
            DraftReport(
                peer.epoch > 0, counters.bytes_sent, counters.bytes_received, self._state_of(peer)
            )
            for peer in self._peers
            for counters in [peer.end.counters]
        ]

    def _state_of(self, peer: DraftPeer) -> str:
        """One of those that `DraftReport` has."""
        if peer.epoch:
            return "attached"
        if peer.index in self._misfits:
            return "misfit"
        return "away" if peer.introduction is None else "silent"

    @property
    def alarm(self) -> int:
        """A file that is readable while an attached draft's process has ended: `poll` then."""
        return self._ends.fileno()

    def poll(self, *, has_streams: bool = True) -> None:
        """Take what drafts have to say, and notice those that are gone.

        Where no draft was told of a stream, there is nothing to say that could not wait.
        """
        now_s = self._polled_s = time.monotonic()
        is_due = now_s >= self._next_look_s or bool(self._ends.poll(0))  # takes a microsecond
        if not (is_due or has_streams):
            return
        for message in self._control.receive():
            if isinstance(message, Attach):
                if not self._was_said(message):
                    self._attach(message)
            else:
                self._want(message)
        if not is_due:
            return
        self._next_look_s = now_s + _POLL_PERIOD_S
        # Not before: whoever attached anew has another pidfd, perhaps under the same number.
        ended = {fd for fd, _ in self._ends.poll(0)}
        for peer in self._peers:
            if peer.introduction is not None:
                self._look_at(peer, peer.introduction, peer.pidfd in ended, now_s)

    def _look_at(
        self, peer: DraftPeer, introduction: Attach, has_ended: bool, now_s: float
    ) -> None:
        heartbeat_s = peer.words.heartbeat_ns / 1e9
        if not peer.epoch:
            # It was only silent, as after a pause of the whole machine, or took another's place.
            if heartbeat_s > peer.detached_s and peer.words.draft_pid:
                self._attach(introduction)
        elif has_ended or not heartbeat_s or not peer.words.draft_pid:
            self._detach(peer, "has ended")
            peer.introduction = None
        elif now_s - max(heartbeat_s, peer.attached_s) > self._timeout_s:
            self._detach(peer, f"has been silent for {self._timeout_s:g} s")
        elif now_s > peer.attached_s + _ANSWER_S and (
            peer.end.is_broken or peer.words.draft_epoch != peer.epoch
        ):
            self._attach(introduction)

    def receive(self) -> list[tuple[int, Push]]:
        """What has been pushed since, with its draft's epoch; in order for each draft."""
        attached = [peer for peer in self._peers if peer.epoch]
        return [(peer.epoch, push) for peer in attached for push in peer.end.receive()]

    def take_wanted(self) -> list[Wanted]:
        """What drafts lack: tell them again from there."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def peer_of(self, request_id: str) -> DraftPeer | None:
        """Who drafts for a request: when one dies only its own requests move."""
        attached = [peer for peer in self._peers if peer.epoch]
        if len(attached) <= 1:
            return attached[0] if attached else None
        return max(attached, key=lambda peer: _rank_of(request_id, peer.index))

    def with_epoch(self, epoch: int) -> DraftPeer | None:
        """The draft attached under this epoch, if it still is."""
        return next((peer for peer in self._peers if epoch and peer.epoch == epoch), None)

    def tell(self, peer: DraftPeer, message: ToDraft) -> bool:
        """False if it was dropped: the draft does not read."""
        return self._control.send(peer.index, message)

    def free(self, epoch: int, stream: int) -> None:
        """A stream is none of this attachment's concern any more, if it is still one."""
        peer = self.with_epoch(epoch)
        if peer is not None:
            self.tell(peer, Free(epoch=epoch, streams=[stream]))

    def close(self) -> None:
        for peer in self._peers:
            self._forget_process(peer)
        for peer in self._peers:
            peer.end.close()
        self._ends.close()
        self._control.close()

    # --- coming and going ------------------------------------------------------------------------

    def _attach(self, message: Attach) -> None:
        if not self._fits(message):
            return
        peer = self._peers[message.draft]
        former = peer.introduction
        pidfd = _open_living(message.pid) if peer.is_here else _FAR
        if pidfd is None:  # it ended before we heard of it, and another may be there by now
            if not peer.epoch and former is not None and former.pid == message.pid:
                peer.introduction = None
            return
        if peer.epoch:
            self._detach(peer, "attaches anew")
            if former is not None and former.pid != message.pid:
                peer.replaced_s = peer.detached_s
        peer.introduction = message
        if peer.replaced_s >= self._polled_s:
            if pidfd != _FAR:
                os.close(pidfd)
            return  # let in at a later look: whoever watches sees that the former was gone
        peer.pidfd = pidfd
        if pidfd != _FAR:
            self._ends.register(pidfd, select.EPOLLIN)
        self._last_epoch += 1
        peer.epoch = peer.end.epoch = self._last_epoch
        peer.attached_s = time.monotonic()
        peer.end.reset()
        answer = Attached(
            epoch=peer.epoch,
            vocab_size=self._limits.vocab_size,
            max_positions=self._limits.max_positions,
            max_rows=self._limits.max_rows,
            max_kept=self._limits.max_kept,
        )
        self._control.send(peer.index, answer)
        log.info("draft %d attached, epoch %d", peer.index, peer.epoch)

    def _fits(self, message: Attach) -> bool:
        limits = self._limits
        if (message.gamma, message.feature_size) == (limits.gamma, limits.feature_size):
            self._misfits.discard(message.draft)
            return True
        if message.draft not in self._misfits:  # it may go on saying so
            self._misfits.add(message.draft)
            log.error("draft %d does not fit this target's configuration", message.draft)
        return False

    def _was_said(self, message: Attach) -> bool:
        """Before its answer was heard: many times while a target loads."""
        peer = self._peers[message.draft]
        known = peer.introduction
        is_known = known is not None and message.pid == known.pid
        return peer.epoch > 0 and message.repetition > 0 and is_known

    def _want(self, message: Wanted) -> None:
        peer = self.with_epoch(message.epoch)
        if peer is not None and peer.index == message.draft:  # not what another one is told
            self._wanted.append(message)

    def _detach(self, peer: DraftPeer, why: str) -> None:
        log.warning("draft %d %s; decoding goes on without it", peer.index, why)
        self._forget_process(peer)
        peer.detached_s = time.monotonic()

    def _forget_process(self, peer: DraftPeer) -> None:
        peer.epoch, peer.end.epoch = 0, None
        if peer.pidfd != _FAR:
            self._ends.unregister(peer.pidfd)
            os.close(peer.pidfd)
            peer.pidfd = _FAR


def _open_living(pid: int) -> int | None:
    """A pidfd of the process; None where it has ended, reaped or not."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    if ended.poll(0):
        os.close(pidfd)
        return None
    return pidfd


def _rank_of(request_id: str, draft: int) -> bytes:
    """By a hash that mixes: checksums of names that end in other digits come in few orders."""
    return hashlib.blake2b(f"{request_id}/{draft}".encode(), digest_size=8).digest()
