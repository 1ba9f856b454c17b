"""Links of a target to drafts that only introduce themselves and beat their hearts."""

import os
import subprocess
import time
from collections.abc import Callable

from specserve.transport.control.draft_control import (
    Attach,
    Attached,
    DraftControlDraft,
    DraftControlTarget,
    Free,
    Wanted,
)
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from target_node.speculation.draft_links import DraftLinks, DraftPeer

LIMITS = LinkLimits(
    vocab_size=64, gamma=4, feature_size=8, max_positions=128, max_rows=8, max_kept=16
)
TIMEOUT_S = 0.3


def eventually(happens: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not happens():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


class FakeDraft:
    """The draft's ends, and a process that lives until it is killed."""

    def __init__(self, index: int, folder, fd: int) -> None:
        self.process = subprocess.Popen(["sleep", "600"])
        self.region = SharedRegion.attach(fd)
        self.end = RingDraftEnd(self.region, LIMITS)
        self._index = index
        self._control = DraftControlDraft(folder, index)

    def introduce(self, **changes) -> None:
        fields = {"gamma": LIMITS.gamma, "feature_size": LIMITS.feature_size} | changes
        self.region.draft_pid = self.process.pid
        attach = Attach(draft=self._index, pid=self.process.pid, drafter="fake", **fields)
        assert eventually(lambda: self._control.send(attach))

    def want(self, epoch: int) -> None:
        wanted = Wanted(draft=self._index, epoch=epoch, stream=7, start=3)
        assert eventually(lambda: self._control.send(wanted))

    def beat(self) -> None:
        self.region.heartbeat_ns = time.monotonic_ns()

    def hear(self) -> None:
        """As a draft does with what it is told."""
        for message in self._control.receive():
            if isinstance(message, Attached):
                self.end.epoch = self.region.draft_epoch = message.epoch

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._control.close()
        self.region.close()


class Pair:
    """Links to two drafts, which beat their hearts while anything is waited for."""

    def __init__(self, folder, num_drafts: int = 2) -> None:
        self._fds = [SharedRegion.create(1 << 16) for _ in range(num_drafts)]
        regions = [SharedRegion.attach(fd) for fd in self._fds]
        self.peers = [
            DraftPeer(index, RingTargetEnd(region, LIMITS), region)
            for index, region in enumerate(regions)
        ]
        control = DraftControlTarget(folder, num_drafts)
        self.links = DraftLinks(
            self.peers, control, limits=LIMITS, drafter="fake", timeout_s=TIMEOUT_S
        )
        self.drafts = [FakeDraft(index, folder, fd) for index, fd in enumerate(self._fds)]
        self.silent: set[FakeDraft] = set()
        for index in range(num_drafts):  # until the sockets have found each other
            assert eventually(lambda index=index: control.send(index, Free(epoch=1, streams=[])))

    def close(self) -> None:
        for draft in self.drafts:
            draft.close()
        self.links.close()
        for peer in self.peers:
            peer.words.close()
        for fd in self._fds:
            os.close(fd)

    def until(self, happened: Callable[[], bool], timeout_s: float = 10.0) -> float:
        """Both sides make turns until it has; how long that took."""
        began_s = time.monotonic()
        while not happened():
            assert time.monotonic() < began_s + timeout_s
            self.turn()
        return time.monotonic() - began_s

    def turn(self) -> None:
        for draft in self.drafts:
            if draft not in self.silent:
                draft.beat()
                draft.hear()
        self.links.poll()
        time.sleep(0.001)

    def attach(self, *drafts: FakeDraft) -> None:
        for draft in drafts:
            draft.introduce()
            self.until(lambda draft=draft: draft.end.epoch is not None)
