"""A draft process on another machine, as the target's links see it: over TCP, without a pidfd."""

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from specserve.transport.control.draft_control import Attach, Attached, DraftControlTarget
from specserve.transport.link.ends import TargetLinkEnd
from specserve.transport.network_link.connection import (
    NetworkDraftEnd,
    TargetConnection,
    ToldWords,
)
from specserve.transport.network_link.hub import DraftHub
from target_node.speculation.draft_links import DraftLinks, DraftPeer
from tests.target_node.speculation.fake_drafts import LIMITS, TIMEOUT_S

DEAD_PID = 2**22 + 1  # above any that this machine gives


class FarDraft:
    """Its process is elsewhere: a pid of it says nothing here."""

    def __init__(self, hub: DraftHub, pid: int) -> None:
        self.pid = pid
        self.connection = TargetConnection(0, lambda: hub.place)
        own = SimpleNamespace(heartbeat_ns=0, draft_pid=0, draft_epoch=0)
        self.words = ToldWords(own, self.connection)
        self.end = NetworkDraftEnd(self.connection, LIMITS)
        self._num_asked = 0

    def turn(self) -> None:
        """As a draft's loop does it."""
        self.words.heartbeat_ns = time.monotonic_ns()
        for message in self.connection.receive():
            if isinstance(message, Attached):
                self.end.epoch = message.epoch
                self.words.draft_epoch = message.epoch
        if self.end.epoch is None:
            self.words.draft_pid = self.pid
            self.connection.send(
                Attach(
                    draft=0,
                    pid=self.pid,
                    drafter="far",
                    gamma=LIMITS.gamma,
                    feature_size=LIMITS.feature_size,
                    repetition=self._num_asked,
                )
            )
            self._num_asked += 1

    def close(self) -> None:
        self.connection.close()


class Far:
    """The target's links to one draft, and whoever is that draft now."""

    def __init__(self, folder) -> None:
        self._hub = DraftHub("127.0.0.1", [0])
        lane = self._hub.lanes[0]
        self.peer = DraftPeer(0, TargetLinkEnd(lane, lane, LIMITS), lane, is_here=False)
        control = DraftControlTarget(folder, 1, far=self._hub.lanes)
        self.links = DraftLinks(
            [self.peer], control, limits=LIMITS, drafter="far", timeout_s=TIMEOUT_S
        )
        self.drafts: list[FarDraft] = []

    def draft(self, pid: int = DEAD_PID) -> FarDraft:
        self.drafts.append(FarDraft(self._hub, pid))
        return self.drafts[-1]

    def until(self, happened: Callable[[], object], *drafts: FarDraft) -> float:
        began_s = time.monotonic()
        while not happened():
            assert time.monotonic() < began_s + 20
            for draft in drafts:
                draft.turn()
            self.links.poll()
            time.sleep(0.001)
        return time.monotonic() - began_s

    def close(self) -> None:
        for draft in self.drafts:
            draft.close()
        self.links.close()


@pytest.fixture
def far(tmp_path) -> Iterator[Far]:
    made = Far(tmp_path)
    yield made
    made.close()


def test_it_is_attached_whatever_its_pid_is_here(far: Far):
    first = far.draft()
    far.until(lambda: far.links.num_attached, first)
    far.until(lambda: first.end.epoch == far.peer.epoch == 1, first)
    assert far.links.reports[0].state == "attached"


@pytest.mark.parametrize("pid", [DEAD_PID, os.getpid()])
def test_its_silence_is_its_end_and_its_next_life_is_let_in(far: Far, pid: int):
    first = far.draft(pid)
    far.until(lambda: first.end.epoch == far.peer.epoch, first)
    first.close()
    far.drafts.remove(first)
    assert far.until(lambda: not far.links.num_attached) > 0.5 * TIMEOUT_S
    second = far.draft(pid)  # of a machine of its own: the same pid may be another process
    far.until(lambda: far.links.num_attached, second)
    far.until(lambda: second.end.epoch == far.peer.epoch == 2, second)


def test_one_that_comes_before_the_former_is_missed_takes_its_place(far: Far):
    first, second = far.draft(), far.draft(DEAD_PID + 1)
    far.until(lambda: first.end.epoch == far.peer.epoch, first)
    far.until(lambda: second.end.epoch == far.peer.epoch != 1, second)
    assert far.links.num_attached == 1


def test_one_that_leaves_is_gone_at_once(far: Far):
    first = far.draft()
    far.until(lambda: first.end.epoch == far.peer.epoch, first)
    first.words.draft_pid = 0
    assert far.until(lambda: not far.links.num_attached) < 10


def test_one_that_was_only_silent_is_let_in_again(far: Far):
    first = far.draft()
    far.until(lambda: first.end.epoch == far.peer.epoch, first)
    far.until(lambda: not far.links.num_attached)
    far.until(lambda: first.end.epoch == far.peer.epoch == 2, first)
