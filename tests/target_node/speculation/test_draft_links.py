"""Draft processes come, go, fall silent and come back: over real sockets, memory and processes."""

import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from specserve.transport.control.draft_control import Wanted
from specserve.transport.link.messages import BlockKey, Push, Report
from specserve.transport.link.ring import RingTargetEnd
from tests.target_node.speculation.fake_drafts import TIMEOUT_S, Pair

PUSH = Push(
    keys=[BlockKey(1, 1, 5, 3)],
    speculation_ids=[1],
    lengths=[4],
    token_ids=np.zeros((1, 4), np.int32),
    confidences=np.zeros((1, 0), np.float32),
    kept_ids=np.zeros((1, 4, 0), np.int32),
    kept_probs=np.zeros((1, 4, 0), np.float32),
)


@pytest.fixture
def pair(tmp_path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_every_attachment_has_an_epoch_of_its_own(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    assert [peer.epoch for peer in pair.peers] == [1, 2]
    first.introduce()
    pair.until(lambda: first.end.epoch == 3)
    assert [peer.epoch for peer in pair.peers] == [3, 2]
    for epoch in (4, 5):
        second.introduce()
        pair.until(lambda epoch=epoch: second.end.epoch == epoch)
    assert pair.links.num_attached == 2
    assert pair.links.with_epoch(1) is None
    assert pair.links.with_epoch(0) is None


def test_a_draft_that_repeated_itself_while_the_target_loaded_attaches_once(pair, caplog):
    first, _ = pair.drafts
    for repetition in range(3):
        first.introduce(repetition=repetition)
    pair.until(lambda: first.end.epoch is not None)
    first.introduce(repetition=3)  # one that was still on its way
    for _ in range(30):
        pair.turn()
    assert first.end.epoch == pair.peers[0].epoch == 1
    assert "attaches anew" not in caplog.text


def test_a_draft_that_was_started_again_is_no_repetition(pair):
    first, _ = pair.drafts
    first.hear = lambda: None
    first.introduce()
    pair.until(lambda: pair.peers[0].epoch == 1)
    former = first.process
    first.process = subprocess.Popen(["sleep", "600"])
    first.introduce(repetition=5)  # all before it were lost
    try:
        pair.until(lambda: pair.peers[0].epoch == 2, timeout_s=0.3)
    finally:
        former.kill()
        former.wait()


def test_a_killed_draft_is_noticed_at_once(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    first.kill()
    assert pair.until(lambda: pair.links.num_attached == 1) < 0.1
    assert pair.links.with_epoch(2) is pair.peers[1]


@pytest.mark.parametrize("num_asked", [1, 3])
def test_one_that_died_and_came_back_between_two_looks_is_gone_for_one_of_them(pair, num_asked):
    """Whoever watches is told. Its pidfd may have the number of the one before, which had ended."""
    first, second = pair.drafts
    pair.attach(first, second)
    first.kill()
    first.process = subprocess.Popen(["sleep", "600"])
    for repetition in range(num_asked):
        first.introduce(repetition=repetition)
    first.beat()
    time.sleep(0.05)  # until it is there
    pair.links.poll()
    assert pair.links.num_attached == 1
    assert pair.until(lambda: pair.links.num_attached == 2) < 0.1
    for _ in range(30):
        pair.turn()
    assert pair.links.num_attached == 2
    assert first.end.epoch == pair.peers[0].epoch == 3


def test_what_the_dead_said_last_drives_nobody_out(pair):
    """It may arrive behind the introduction of the process that took its place, and unreaped."""
    first, _ = pair.drafts
    former = first.process
    former.kill()
    os.waitid(os.P_PID, former.pid, os.WEXITED | os.WNOWAIT)
    first.process = subprocess.Popen(["sleep", "600"])
    pair.attach(first)
    first.process, living = former, first.process
    first.introduce()
    former.wait()
    first.introduce()
    first.process = living
    first.region.draft_pid = living.pid
    for _ in range(100):
        pair.turn()
        assert first.end.epoch == pair.peers[0].epoch == 1


@pytest.mark.slow
@pytest.mark.parametrize("was_unheard", [True, False])
@pytest.mark.parametrize("period_s", [0.55, 0.9])
def test_a_draft_of_long_turns_is_attached_after_few_of_them(pair, period_s, was_unheard):
    """It reads an answer only after the next attempt has begun; its deadline is longer."""
    first, _ = pair.drafts
    pair.links._timeout_s = 1.0
    if was_unheard:
        pair.attach(first)
        first.end.epoch = first.region.draft_epoch = 0
    pair.silent.add(first)
    for repetition in range(5):
        first.beat()
        first.hear()
        if first.end.epoch is None:
            first.introduce(repetition=repetition)
        ends_s = time.monotonic() + period_s
        while time.monotonic() < ends_s:
            pair.turn()
    first.beat()
    first.hear()
    pair.turn()
    assert first.region.draft_epoch == pair.peers[0].epoch > 0


def test_one_that_leaves_before_it_was_let_in_is_not(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    first.kill()
    first.process = subprocess.Popen(["sleep", "600"])
    first.introduce()
    time.sleep(0.05)
    pair.links.poll()
    first.beat()
    first.region.draft_pid = 0
    pair.silent.add(first)
    for _ in range(100):
        pair.turn()
        assert pair.links.num_attached == 1


def test_a_draft_that_ended_raises_the_alarm_until_somebody_looks(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    assert not select.select([pair.links.alarm], [], [], 0)[0]
    first.kill()
    assert select.select([pair.links.alarm], [], [], 1)[0]
    pair.links.poll(has_streams=False)  # a look at heartbeats may not be due
    assert pair.links.num_attached == 1
    assert not select.select([pair.links.alarm], [], [], 0)[0]
    second.kill()
    assert select.select([pair.links.alarm], [], [], 1)[0]


def test_closing_leaves_no_file_open(pair):
    alarm = pair.links.alarm
    pair.links.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(alarm)


def test_a_draft_that_says_it_leaves_is_let_go_at_once(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    pair.silent.add(first)
    first.region.draft_pid = 0
    assert pair.until(lambda: pair.links.num_attached == 1) < 0.1
    assert first.process.poll() is None
    pair.silent.clear()  # whatever beats now is another life, and has to introduce itself
    for _ in range(50):
        pair.turn()
    assert pair.links.num_attached == 1
    first.introduce()
    pair.until(lambda: pair.links.num_attached == 2)


@pytest.mark.slow
def test_a_stopped_draft_is_noticed_within_its_deadline_and_let_in_again(pair, caplog):
    first, second = pair.drafts
    pair.attach(first, second)
    pair.silent.add(first)
    assert pair.until(lambda: pair.links.num_attached == 1) < TIMEOUT_S + 0.1
    assert not pair.peers[0].end.send(Report([]))
    assert "draft 0 has been silent" in caplog.text
    pair.silent.clear()
    pair.until(lambda: first.end.epoch == 3)
    assert pair.links.num_attached == 2


@pytest.mark.slow
def test_a_draft_that_was_silent_and_then_died_is_not_let_in(pair):
    (first, _) = pair.drafts
    pair.attach(first)
    pair.silent.add(first)
    pair.until(lambda: pair.links.num_attached == 0)
    first.kill()
    pair.silent.clear()  # the next process beats before it introduces itself
    for _ in range(100):
        pair.turn()
    assert pair.links.num_attached == 0


@pytest.mark.slow
@pytest.mark.parametrize("repetition", [0, 3])
def test_a_draft_that_did_not_hear_its_epoch_gets_another(pair, repetition):
    """Whichever of its introductions was the first to arrive."""
    first, _ = pair.drafts
    hear, first.hear = first.hear, lambda: None
    first.introduce(repetition=repetition)
    pair.until(lambda: pair.peers[0].epoch == 1)
    pair.until(lambda: pair.peers[0].epoch == 2)
    first.hear = hear
    pair.until(lambda: first.end.epoch == pair.peers[0].epoch)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", [0, 3])
def test_a_broken_link_is_made_again_under_another_epoch(pair, monkeypatch, repetition):
    first, _ = pair.drafts
    first.introduce(repetition=repetition)
    pair.until(lambda: first.end.epoch == 1)
    monkeypatch.setattr(RingTargetEnd, "is_broken", property(lambda end: end.epoch == 1))
    assert 0.3 < pair.until(lambda: first.end.epoch == 2) < 2
    for _ in range(100):
        pair.turn()
    assert pair.peers[0].epoch == 2


def test_what_was_pushed_before_does_not_count(pair):
    first, _ = pair.drafts
    pair.attach(first)
    for _ in range(3):
        assert first.end.send(PUSH)
    first.introduce()
    pair.until(lambda: first.end.epoch == 2)
    assert pair.links.receive() == []
    first.end.send(PUSH)
    ((epoch, push),) = pair.links.receive()
    assert (epoch, push.keys) == (2, PUSH.keys)
    first.end.epoch = 1
    first.end.send(PUSH)
    assert pair.links.receive() == []


@pytest.mark.parametrize("changes", [{"gamma": 5}, {"feature_size": 0}])
def test_a_draft_that_does_not_fit_is_not_let_in_and_told_of_once(pair, caplog, changes):
    first, _ = pair.drafts
    for _ in range(3):
        first.introduce(**changes)
        for _ in range(20):
            pair.turn()
    assert pair.links.num_attached == 0
    assert caplog.text.count("does not fit") == 1
    first.introduce()
    pair.until(lambda: pair.links.num_attached == 1)
    first.introduce(**changes)
    pair.until(lambda: caplog.text.count("does not fit") == 2)


def test_an_introduction_of_the_dead_is_ignored(pair):
    first, _ = pair.drafts
    first.kill()
    first.introduce()
    for _ in range(20):
        pair.turn()
    assert pair.links.num_attached == 0


def test_a_stopped_process_counts_as_silent_not_as_ended(pair):
    first, _ = pair.drafts
    pair.attach(first)
    os.kill(first.process.pid, signal.SIGSTOP)
    for _ in range(50):
        pair.turn()
    assert pair.links.num_attached == 1


def test_requests_are_shared_out_and_only_those_of_a_dead_draft_move(tmp_path, request):
    pair = Pair(tmp_path, num_drafts=3)
    request.addfinalizer(pair.close)
    first, second, third = pair.drafts
    names = [f"request {index}" for index in range(300)]
    pair.attach(first, second, third)
    before = {name: pair.links.peer_of(name).index for name in names}
    assert min(Counter(before.values()).values()) > 80
    first.kill()
    pair.until(lambda: pair.links.num_attached == 2)
    after = {name: pair.links.peer_of(name).index for name in names}
    assert {name: index for name, index in before.items() if index} == {
        name: after[name] for name in names if before[name]
    }
    assert set(after.values()) == {1, 2}
    second.kill()
    third.kill()
    pair.until(lambda: pair.links.num_attached == 0)
    assert pair.links.peer_of("any") is None
    assert pair.links.receive() == []


def test_only_the_living_may_want_something(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    second.want(epoch=9)
    second.want(epoch=1)  # of another draft
    time.sleep(0.05)  # until that is there
    pair.links.poll()
    assert pair.links.take_wanted() == []
    first.want(epoch=1)
    wanted: list[Wanted] = []
    pair.until(lambda: bool(wanted.extend(pair.links.take_wanted()) or wanted))
    assert [(each.epoch, each.stream, each.start) for each in wanted] == [(1, 7, 3)]
    assert pair.links.take_wanted() == []
    first.introduce()
    pair.until(lambda: first.end.epoch == 3)
    first.want(epoch=1)  # of a life that is over
    first.want(epoch=3)
    pair.until(lambda: bool(wanted.extend(pair.links.take_wanted()) or wanted[1:]))
    assert [each.epoch for each in wanted] == [1, 3]


def test_without_streams_messages_wait_for_the_next_look_and_with_them_they_do_not(pair):
    first, second = pair.drafts
    pair.attach(first, second)
    asked: list[str] = []
    control = mock.Mock(receive=lambda: asked.append("control") or [])
    with mock.patch.object(pair.links, "_control", control):
        pair.links._next_look_s = time.monotonic() + 60
        pair.links.poll(has_streams=False)
        assert not asked
        pair.links.poll(has_streams=True)
        assert asked == ["control"]
        pair.links._next_look_s = 0.0
        pair.links.poll(has_streams=False)
        assert asked == 2 * ["control"]
