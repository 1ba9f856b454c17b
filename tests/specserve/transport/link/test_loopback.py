"""The scripted link does what its script says, and no script changes a message."""

import logging
import os

import numpy as np
import pytest

from specserve.transport.link.messages import Report
from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from tests.specserve.transport.link.chaos import RingInjector
from tests.specserve.transport.link.loopback import Loopback, Script
from tests.specserve.transport.link.messages import (
    LIMITS,
    number_of,
    numbered_push,
    random_report,
    random_row,
    same,
)


def loopback(script=None, **fields):
    link = Loopback(LIMITS, script or Script(**fields))
    link.attach(1)
    return link


def exchange(link, count, deliver=True):
    """Push `count`; numbers in the order in which they arrive, each message checked."""
    numbers = []
    for number in range(count):
        link.draft.send(numbered_push(number))
        if deliver:
            link.deliver()
        for push in link.target.receive():
            assert same(push, numbered_push(number_of(push)))
            numbers.append(number_of(push))
    return numbers


def test_an_empty_script_is_a_perfect_link():
    link = loopback()
    source = np.random.default_rng(0)
    for _ in range(20):
        report = random_report(source)
        assert link.target.send(report)
        (arrived,) = link.draft.receive()
        assert same(report, arrived)
    assert exchange(link, 50, deliver=False) == list(range(50))


def test_a_delayed_frame_is_there_after_so_many_steps():
    link = loopback(delay=3)
    link.draft.send(numbered_push(0))
    for _ in range(2):
        link.deliver()
        assert link.target.is_empty()
        assert link.target.receive() == []
    link.deliver()
    assert not link.target.is_empty()
    assert [number_of(push) for push in link.target.receive()] == [0]


def test_a_full_link_drops():
    link = loopback(delay=1, capacity=4)
    assert [link.draft.send(numbered_push(number)) for number in range(6)] == [True] * 4 + [
        False
    ] * 2
    link.deliver()
    assert [number_of(push) for push in link.target.receive()] == [0, 1, 2, 3]
    assert link.draft.counters.num_dropped == 2


def test_lost_frames_are_missing_and_the_rest_in_order():
    numbers = exchange(loopback(loss=0.3, seed=1), 300)
    assert 150 < len(numbers) < 270
    assert numbers == sorted(set(numbers))


def test_frames_that_come_twice_count_once():
    link = loopback(duplication=0.5, seed=1)
    assert exchange(link, 300) == list(range(300))
    assert link.target.counters.num_stale > 100


def test_an_overtaken_frame_is_stale():
    link = loopback(delay=2, reordering=0.3, seed=1)
    numbers = exchange(link, 300)
    assert link.target.counters.num_stale > 30
    assert 150 < len(numbers) < 300
    assert numbers == sorted(set(numbers))


def test_flipped_bits_and_garbage_are_malformed():
    link = loopback(bit_flips=0.2, garbage=0.2, seed=1)
    numbers = exchange(link, 300)
    assert 150 < len(numbers) < 290
    assert link.target.counters.num_malformed == link.target.counters.num_received - len(numbers)


def test_sound_frames_of_other_epochs_are_stale():
    link = loopback(stale=1.0)
    assert exchange(link, 50) == list(range(50))
    assert link.target.counters.num_stale == 50
    assert link.target.counters.num_malformed == 0


def test_what_is_under_way_when_the_epoch_changes_is_stale():
    link = loopback(delay=1)
    link.target.send(Report([random_row(np.random.default_rng(0))]))
    link.attach(2)
    link.deliver()
    assert link.draft.receive() == []
    assert link.draft.counters.num_stale == 1


def test_a_script_repeats():
    script = Script(
        delay=1, loss=0.1, duplication=0.1, reordering=0.1, bit_flips=0.1, garbage=0.1, stale=0.1
    )
    first, second = exchange(loopback(script), 300), exchange(loopback(script), 300)
    assert first == second
    assert 100 < len(first) < 300
    assert exchange(loopback(script), 300) != exchange(loopback_of_equal_seeds(script), 300)


def loopback_of_equal_seeds(script):
    link = Loopback(LIMITS, script, script)
    link.attach(1)
    return link


def test_a_flood_of_garbage_is_logged_at_powers_of_two(caplog):
    link = loopback(garbage=1.0)
    with caplog.at_level(logging.WARNING):
        exchange(link, 100)
    assert link.target.counters.num_malformed == 100
    assert sum(link.target.counters.malformed.values()) == 100
    assert len(caplog.records) == 7


@pytest.fixture
def ring_ends():
    fd = SharedRegion.create(2**16)
    region = SharedRegion.attach(fd)
    target, draft = RingTargetEnd(region, LIMITS), RingDraftEnd(region, LIMITS)
    target.epoch = draft.epoch = 5
    yield region, target, draft
    region.close()
    os.close(fd)


def test_ten_thousand_bad_frames_cost_no_good_one_in_either_direction(ring_ends):
    """Written between those of the ring's own writers: every good one arrives once, in order."""
    region, target, draft = ring_ends
    injectors = RingInjector(region.to_target, 1), RingInjector(region.to_draft, 2)
    source = np.random.default_rng(0)
    num_bad = 0
    for number in range(500):
        report = Report([random_row(source)])
        assert draft.send(numbered_push(number))
        assert target.send(report)
        num_bad += sum(injector.inject(10) for injector in injectors)
        (push,) = target.receive()
        assert same(push, numbered_push(number))
        (arrived,) = draft.receive()
        assert same(report, arrived)
    assert num_bad == 10_000
    for counters in (target.counters, draft.counters):
        assert counters.num_received == 500 + 5000
        assert counters.num_stale > 500
        assert counters.num_malformed > 2000
        assert counters.num_stale + counters.num_malformed == 5000
    assert region.to_target.num_resets == region.to_draft.num_resets == 0


def test_an_injector_repeats_and_respects_a_full_ring(ring_ends):
    region, _, draft = ring_ends
    written = []
    for _ in range(2):
        injector = RingInjector(region.to_target, 1)
        draft.epoch = None
        draft.epoch = 5
        assert draft.send(numbered_push(0))
        assert injector.watch() == 1
        num_written = injector.inject(10_000)
        assert 50 < num_written < 10_000
        records = []
        while (record := region.to_target.read()) is not None:
            records.append(bytes(record))
        assert len(records) == num_written + 1
        written.append(records)
    assert written[0] == written[1]
