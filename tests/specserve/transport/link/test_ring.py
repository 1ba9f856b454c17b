"""The rings and the region, in one process; a stranger scribbles through the descriptor."""

import array
import os
import random
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

from specserve.errors import Unavailable
from specserve.transport.link.ends import MAX_FRAMES_A_CALL
from specserve.transport.link.messages import Report
from specserve.transport.link.ring import RingTargetEnd, SharedRegion
from tests.specserve.transport.link.messages import (
    LIMITS,
    number_of,
    numbered_push,
    random_push,
    random_report,
    random_row,
    same,
)
from tests.specserve.transport.link.scribbling import AT_HEAD, AT_TAIL, RING_BYTES, poke


def test_messages_cross_in_both_directions(ends):
    target, draft = ends
    source = np.random.default_rng(0)
    for _ in range(50):
        report, push = random_report(source), random_push(source)
        assert target.send(report)
        assert draft.send(push)
        assert not draft.is_empty()
        (arrived,) = draft.receive()
        assert same(report, arrived)
        (arrived,) = target.receive()
        assert same(push, arrived)
        assert target.is_empty()
        assert draft.is_empty()
        assert draft.receive() == target.receive() == []


@pytest.mark.parametrize("start", [0, 2**64 - 2048])
def test_a_ring_is_a_queue_of_bounded_size_at_any_offset(fd, region, other, start):
    poke(fd, AT_HEAD, start)
    poke(fd, AT_TAIL, start)
    source = random.Random(5)
    expected, used, num_full = deque(), 0, 0
    for _ in range(3000):
        if source.random() < 0.55:
            record = source.randbytes(source.randint(1, 700))
            cut = source.randint(0, len(record))
            room = 8 + (len(record) + 7) // 8 * 8
            fits = used + room <= RING_BYTES
            assert region.to_target.write([record[:cut], record[cut:]]) is fits
            num_full += not fits
            if fits:
                expected.append((record, room))
                used += room
        else:
            read = other.to_target.read()
            assert (read is None) is not expected
            if read is not None:
                record, room = expected.popleft()
                assert read == record
                used -= room
        assert other.to_target.is_empty() is (not expected)
    assert num_full > 50
    assert other.to_target.num_resets == 0


def test_a_record_may_fill_the_ring_and_not_more(region):
    ring = region.to_draft
    assert not ring.write([bytes(RING_BYTES - 7)])
    assert not ring.write([bytes(RING_BYTES), bytes(RING_BYTES)])
    assert ring.write([b"x" * (RING_BYTES - 8)])
    assert not ring.write([b"y"])
    assert ring.read() == b"x" * (RING_BYTES - 8)
    assert ring.write([b"y"])
    assert ring.read() == b"y"


def test_the_two_rings_do_not_touch(region):
    assert region.to_draft.write([b"d" * (RING_BYTES - 8)])
    assert region.to_target.write([b"t" * (RING_BYTES - 8)])
    assert region.to_draft.read() == b"d" * (RING_BYTES - 8)
    assert region.to_target.read() == b"t" * (RING_BYTES - 8)


def test_a_full_ring_drops_counts_and_recovers(ends):
    target, draft = ends
    num_sent = 0
    while draft.send(numbered_push(num_sent)):
        num_sent += 1
    assert not draft.send(numbered_push(99))
    assert draft.counters.num_dropped == 2
    assert draft.counters.num_sent == num_sent > 3
    assert [number_of(push) for push in target.receive()] == list(range(num_sent))
    assert target.counters.bytes_received == draft.counters.bytes_sent
    assert draft.send(numbered_push(100))
    assert [number_of(push) for push in target.receive()] == [100]
    assert target.counters.num_malformed == 0


def test_what_was_received_outlives_the_ring(ends):
    target, draft = ends
    draft.send(numbered_push(0))
    (first,) = target.receive()
    for number in range(1, 100):
        draft.send(numbered_push(number))
        target.receive()
    assert same(first, numbered_push(0))


def test_one_call_does_not_follow_a_flood(fd):
    with_room = SharedRegion.create(2**20)
    region = SharedRegion.attach(with_room)
    target = RingTargetEnd(region, LIMITS)
    target.epoch = 1
    for _ in range(1000):
        assert region.to_target.write([b"rubbish"])
    for _ in range(3):
        assert target.receive() == []
    assert target.counters.num_received == 3 * MAX_FRAMES_A_CALL
    region.close()
    os.close(with_room)


def test_a_writer_killed_half_way_leaves_nothing(region, other):
    region.to_target.write([b"before"])
    with pytest.raises(ValueError, match="different structures"):  # dies within the copying
        region.to_target.write([b"half a record", memoryview(array.array("d", [1.0]))])
    assert other.to_target.read() == b"before"
    assert other.to_target.read() is None
    assert other.to_target.write([b"of the next writer"])
    assert region.to_target.read() == b"of the next writer"
    assert region.to_target.num_resets == 0


def test_nobody_attached_sends_nothing_and_drops_what_comes(ends):
    target, draft = ends
    target.epoch = None
    assert not target.send(Report([]))
    assert target.counters.num_dropped == 1
    assert draft.is_empty()
    draft.send(numbered_push(0))
    assert target.receive() == []
    target.epoch = 1
    assert target.receive() == []
    draft.send(numbered_push(1))
    assert [number_of(push) for push in target.receive()] == [1]


def test_frames_of_the_previous_epoch_are_stale(ends):
    target, draft = ends
    draft.send(numbered_push(0))
    target.epoch = 2
    draft.send(numbered_push(1))
    assert target.receive() == []
    assert target.counters.num_stale == 2
    assert target.counters.num_malformed == 0
    draft.epoch = 2
    draft.send(numbered_push(2))
    assert [number_of(push) for push in target.receive()] == [2]


def test_a_reset_forgets_what_waits(ends):
    target, draft = ends
    draft.send(numbered_push(0))
    target.reset()
    assert target.is_empty()
    draft.send(numbered_push(1))
    assert [number_of(push) for push in target.receive()] == [1]


def test_a_frame_for_the_other_direction_is_malformed(region, ends):
    target, _ = ends
    target.send(Report([random_row(np.random.default_rng(0))]))
    region.to_target.write([region.to_draft.read()])
    assert target.receive() == []
    assert target.counters.malformed == {"wrong kind": 1}


def test_a_replayed_frame_counts_once(region, ends):
    target, draft = ends
    for number in range(3):
        draft.send(numbered_push(number))
    frames = [region.to_target.read() for _ in range(3)]
    for index in (0, 0, 1, 0, 2, 1, 2):
        region.to_target.write([frames[index]])
    assert [number_of(push) for push in target.receive()] == [0, 1, 2]
    assert target.counters.num_stale == 4


def test_the_words_of_the_header_are_shared(region, other):
    assert (other.heartbeat_ns, other.draft_pid, other.draft_epoch) == (0, 0, 0)
    region.heartbeat_ns, region.draft_pid, region.draft_epoch = 2**62, 12345, 7
    assert (other.heartbeat_ns, other.draft_pid, other.draft_epoch) == (2**62, 12345, 7)


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 5000, 4096 + 2 * RING_BYTES])
def test_other_memory_is_refused(num_bytes):
    fd = os.memfd_create("other")
    os.ftruncate(fd, num_bytes)
    with pytest.raises(Unavailable, match="holds no link"):
        SharedRegion.attach(fd)
    os.close(fd)


def test_a_region_of_another_version_is_refused(fd):
    poke(fd, 8, 2)
    with pytest.raises(Unavailable, match="version 1"):
        SharedRegion.attach(fd)


@pytest.mark.parametrize("ring_bytes", [0, 32, 100, -64, 3 * 4096])
def test_a_ring_is_a_power_of_two(ring_bytes):
    with pytest.raises(ValueError, match="power of two"):
        SharedRegion.create(ring_bytes)


def test_nobody_can_shrink_the_memory_under_a_reader(fd):
    for num_bytes in (0, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, num_bytes)


def test_the_descriptor_is_inherited_only_by_name(fd):
    assert not os.get_inheritable(fd)


def test_a_link_loads_no_torch():
    names = ("link.ends", "link.ring", "control.draft_control")
    modules = ", ".join(f"specserve.transport.{name}" for name in names)
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
