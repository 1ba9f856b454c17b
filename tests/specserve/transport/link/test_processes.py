"""Two real processes over one ring: everything arrives once, in order and whole, or not at all."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from specserve.transport.link.ring import RingTargetEnd, SharedRegion
from tests.specserve.transport.link.chaos import RingInjector
from tests.specserve.transport.link.messages import LIMITS, number_of, numbered_push, same


@contextmanager
def writer(fd, epoch, count=0, num_kept=4):
    module = "tests.specserve.transport.link.push_writer"
    arguments = [str(value) for value in (fd, epoch, count, num_kept)]
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], pass_fds=[fd])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def link():
    """Descriptor, region and target end; the rings are so small that they are often full."""
    fd = SharedRegion.create(2**16)
    region = SharedRegion.attach(fd)
    yield fd, region, RingTargetEnd(region, LIMITS)
    region.close()
    os.close(fd)


def received(end, process=None):
    """Stream and number of the pushes that arrive, each checked byte for byte.

    Ends when the writer `process` has ended and left nothing, or after a minute or two.
    """
    end_s = time.monotonic() + 100
    while time.monotonic() < end_s:
        ended = process is not None and process.poll() is not None
        pushes = end.receive()
        for push in pushes:
            number, num_kept = number_of(push), push.kept_ids.shape[2]
            assert same(push, numbered_push(number, push.keys[0].stream, num_kept))
            yield push.keys[0].stream, number
        if not pushes:
            if ended:
                return
            time.sleep(0.0002)


def check_all_arrive(link, count):
    fd, region, end = link
    end.epoch = 1
    with writer(fd, 1, count) as process:
        for expected, (_, number) in enumerate(received(end)):
            assert number == expected
            if number == count - 1:
                break
        assert process.wait(10) == 0
    assert region.draft_pid == process.pid
    assert 0 < time.monotonic_ns() - region.heartbeat_ns < 60e9
    assert end.counters.num_received == count
    assert end.counters.num_malformed == end.counters.num_stale == 0


@pytest.mark.slow
def test_every_frame_of_another_process_arrives_once_in_order(link):
    check_all_arrive(link, 2000)


@pytest.mark.slow
def test_a_hundred_thousand_frames_arrive_once_in_order(link):
    check_all_arrive(link, 100_000)


@pytest.mark.slow
def test_killed_writers_leave_whole_frames_only(link):
    fd, region, end = link
    for epoch in range(1, 5):
        end.epoch = epoch
        end.reset()
        with writer(fd, epoch, num_kept=7) as process:
            for expected, stream_and_number in enumerate(received(end, process)):
                assert stream_and_number == (epoch, expected)
                if expected == 50 * epoch:
                    process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL
        assert end.is_empty()
    assert end.counters.num_malformed == region.to_target.num_resets == 0


@pytest.mark.slow
def test_a_new_writer_starts_clean_where_the_killed_one_left_its_frames(link):
    fd, _, end = link
    end.epoch = 1
    with writer(fd, 1):
        next(received(end))
        time.sleep(0.1)  # the ring fills up; nobody reads
    assert not end.is_empty()
    end.epoch = 2
    with writer(fd, 2, 500):
        arrived = []
        for stream_and_number in received(end):
            arrived.append(stream_and_number)
            if stream_and_number[1] == 499:
                break
    assert arrived == [(2, number) for number in range(500)]
    assert end.counters.num_stale > 10
    assert end.counters.num_malformed == 0


@pytest.mark.slow
def test_ten_thousand_bad_frames_among_those_of_a_live_writer_change_no_message(link):
    """Two writers on one ring at the same moment: frames are lost, none is wrong or comes twice."""
    fd, region, end = link
    end.epoch = 1
    injector = RingInjector(region.to_target, seed=3)
    num_bad, last, num_good = 0, -1, 0
    with writer(fd, 1):
        next(received(end))
        end_s = time.monotonic() + 50
        while num_bad < 10_000 and time.monotonic() < end_s:
            pushes = end.receive()
            num_bad += injector.inject(50)  # now that there is room, for both
            for push in pushes:
                assert same(push, numbered_push(number_of(push)))
                assert number_of(push) > last
                last = number_of(push)
                num_good += 1
        assert num_bad >= 10_000
    assert end.counters.num_malformed + end.counters.num_stale > 1000
    assert num_good > 100
    end.reset()
    end.epoch = 2
    with writer(fd, 2, 50):
        for stream_and_number in received(end):
            if stream_and_number == (2, 49):
                break
