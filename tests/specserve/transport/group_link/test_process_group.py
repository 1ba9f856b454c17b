"""Two real processes and a gloo group between them: what NCCL would carry, and how it is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch

from specserve.transport.group_link.ends import GroupTargetEnd
from specserve.transport.group_link.lanes import MAX_LANDED, MAX_MOVING
from specserve.transport.link.ring import SharedRegion
from tests.specserve.transport.group_link.device_messages import numbered_report, on_host
from tests.specserve.transport.group_link.group_peer import DEVICES, TIMEOUT_S, meeting_in
from tests.specserve.transport.link.messages import LIMITS, number_of, numbered_push, same

PROMPT_S = 0.4  # no call takes longer, even on a machine that does other things


class Target:
    """The target's end; every call to it is timed."""

    def __init__(self, folder, timeout_s: float, backend: str = "gloo") -> None:
        self.folder, self.backend = folder, backend
        self.fd = SharedRegion.create(2**16)
        self.region = SharedRegion.attach(self.fd)
        self.end = GroupTargetEnd(self.region, LIMITS, meeting_in(folder, backend, timeout_s))
        self.longest_s = 0.0

    def enter(self, epoch: int | None) -> None:
        self._timed(setattr, self.end, "epoch", epoch)
        self._timed(self.end.reset)

    def send(self, number: int) -> bool:
        return self._timed(self.end.send, numbered_report(number, DEVICES[self.backend]))

    def receive(self) -> list:
        return self._timed(self.end.receive)

    def until(self, happened: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def converse(self, epoch: int, count: int) -> int:
        """Send `count` reports and take the pushes that answer them; how many were dropped."""
        self.until(lambda: self.send(0))  # dropped until both are there
        sent, received, num_dropped = 1, 0, 0
        deadline_s = time.monotonic() + 60
        while received < count:
            assert time.monotonic() < deadline_s
            assert not self.end.is_broken
            if sent < count:
                done = self.send(sent)
                sent, num_dropped = sent + done, num_dropped + (not done)
            pushes = self.receive()
            for push in pushes:
                assert number_of(push) == received
                assert push.kept_ids.device == torch.device(DEVICES[self.backend])
                assert same(on_host(push), numbered_push(received, stream=epoch))
                received += 1
            if not pushes:
                time.sleep(0.0005)
        return num_dropped

    def close(self) -> None:
        self.end.close()
        self.region.close()
        os.close(self.fd)

    def _timed(self, call, *arguments):
        began_s = time.monotonic()
        result = call(*arguments)
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        return result


@contextmanager
def draft(target: Target, epoch: int, manner: str = "echo"):
    """A process that is there and has begun to join; the target has entered the same epoch."""
    with starting(target, epoch, manner) as process:
        target.until(lambda: target.region.draft_pid == process.pid)
        target.enter(epoch)
        yield process


@contextmanager
def starting(target: Target, epoch: int, manner: str = "echo"):
    module = "tests.specserve.transport.group_link.group_peer"
    words = [module, target.fd, target.folder, epoch, manner, target.backend]
    process = subprocess.Popen([sys.executable, "-m", *map(str, words)], pass_fds=[target.fd])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def target(tmp_path):
    made = Target(tmp_path, TIMEOUT_S)
    yield made
    made.close()
    assert made.longest_s < PROMPT_S
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith(("link", "gloo"))
    ]


@pytest.fixture
def impatient(tmp_path):
    made = Target(tmp_path, 0.5)
    yield made
    made.close()
    assert made.longest_s < PROMPT_S


@pytest.mark.slow
def test_frames_cross_both_ways_in_order(target):
    with draft(target, 1):
        target.converse(1, 300)
    counters = target.end.counters
    assert counters.num_received == 300
    assert counters.num_malformed == counters.num_stale == 0


@pytest.mark.slow
def test_only_loopback_is_listened_on(target):
    with draft(target, 1) as process:
        target.converse(1, 1)
        addresses = [address for pid in (os.getpid(), process.pid) for address in listening(pid)]
    assert "0100007F" in addresses
    # Servers of other tests in this process may listen on the same in the notation of IPv6.
    assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def listening(pid: int) -> list[str]:
    """Addresses, as the kernel writes them, on which a process listens."""
    entries = os.scandir(f"/proc/{pid}/fd")
    links = [os.readlink(entry.path) for entry in entries if os.path.islink(entry.path)]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as table:
            rows += [line.split() for line in table][1:]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


def test_a_peer_that_never_joins_blocks_nobody(target):
    target.enter(1)
    for _ in range(200):
        assert not target.send(0)
        assert target.receive() == []
        assert target.end.is_empty()
        time.sleep(0.001)
    assert not target.end.is_broken
    began_s = time.monotonic()
    target.end.close()
    assert time.monotonic() - began_s < 2


@pytest.mark.slow
def test_a_peer_that_does_not_read_costs_dropped_frames_and_then_the_link(impatient, caplog):
    with draft(impatient, 1, "mute"):
        impatient.until(lambda: impatient.send(0))
        num_sent = 1
        deadline_s = time.monotonic() + 60
        while not impatient.end.is_broken:
            assert time.monotonic() < deadline_s
            num_sent += impatient.send(1 + 7 * num_sent)
            time.sleep(0.0005)
        assert MAX_LANDED <= num_sent <= MAX_LANDED + MAX_MOVING + 1
        assert impatient.end.counters.num_dropped > 100
        assert not impatient.send(0)
        assert impatient.receive() == []
        assert caplog.text.count("the link of epoch 1 is broken") == 1
    with draft(impatient, 2):
        impatient.converse(2, 20)


@pytest.mark.slow
def test_a_stopped_peer_takes_what_may_be_under_way_and_no_more(impatient):
    with draft(impatient, 1) as process:
        impatient.converse(1, 20)
        process.send_signal(signal.SIGSTOP)
        num_sent = 0
        deadline_s = time.monotonic() + 60
        while not impatient.end.is_broken:
            assert time.monotonic() < deadline_s
            num_sent += impatient.send(1)
            time.sleep(0.0005)
        assert num_sent <= MAX_MOVING + 1
        assert impatient.receive() == []


@pytest.mark.slow
def test_a_peer_that_goes_on_after_the_link_was_given_up_comes_to_the_next_epoch(impatient):
    with draft(impatient, 1) as process:
        for epoch in range(1, 4):
            impatient.region.draft_epoch = epoch
            impatient.enter(epoch)
            impatient.converse(epoch, 20)
            process.send_signal(signal.SIGSTOP)
            while not impatient.end.is_broken:
                impatient.send(1)
                time.sleep(0.0005)
            process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_rubbish_is_counted_and_what_follows_is_sound(target):
    with draft(target, 1, "rubbish"):
        target.converse(1, 50)
        for noise in (b"noise", bytes(20), os.urandom(24), os.urandom(500)):
            assert target.region.to_target.write([noise])
        target.until(lambda: not target.receive() and target.end.counters.num_malformed >= 54)
    assert target.end.counters.num_malformed == 54
    assert not target.end.is_broken


@pytest.mark.slow
def test_a_killed_peer_ends_the_epoch_and_the_next_one_works(target):
    for epoch in range(1, 5):
        with draft(target, epoch) as process:
            target.converse(epoch, 10 * epoch)
            for number in range(1, MAX_MOVING + 1):  # on their way when it dies
                target.send(number)
            process.send_signal(signal.SIGKILL)
            deadline_s = time.monotonic() + 30
            while not target.end.is_broken:
                assert time.monotonic() < deadline_s
                target.send(1)
                target.receive()
                time.sleep(0.0005)
        target.enter(None)
        assert not target.send(0)
        assert target.receive() == []
    assert len(list(target.folder.glob("link_*"))) <= 2  # what was needed to meet is tidied up


@pytest.mark.slow
def test_a_peer_killed_before_it_has_joined_is_forgotten(target):
    for epoch in range(1, 4):
        target.enter(epoch)
        with starting(target, epoch):
            time.sleep(0.5 * epoch)
    with draft(target, 4):
        target.converse(4, 20)
