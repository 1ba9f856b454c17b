"""What drafts are believed to take: what the start measured, at the pace of the latest."""

import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.types import DraftTime
from target_node.planning.draft_pace import DraftPace

TIMES = DraftTimes([DraftTime(1, 0.1, 0.02), DraftTime(16, 0.4, 0.08)], enter_s=0.05)


def timed() -> DraftPace:
    return DraftPace(lambda: TIMES)


def test_before_any_draft_the_start_is_believed():
    assert timed().seconds(1, 5) == pytest.approx(0.2)
    assert timed().entering_s(1) == 0.05
    assert timed().entering_s(0) == timed().seconds(0, 5) == 0.0


def test_nothing_is_known_of_what_was_neither_timed_nor_drafted():
    pace = DraftPace()
    assert not pace.is_known
    assert pace.seconds(4, 5) == 0.0
    for seconds in (9.0, 0.3):  # the first of all says nothing
        pace.observe(4, 5, seconds)
    assert pace.is_known
    assert pace.seconds(4, 5) == pace.seconds(1, 1) == 0.3


def test_a_drafter_that_is_slower_than_at_its_start_is_slower_at_every_length():
    pace = timed()
    for _ in range(10):
        pace.observe(1, 5, 3 * 0.2)
    assert pace.seconds(1, 10) == pytest.approx(3 * 0.3)
    assert pace.seconds(16, 1) == pytest.approx(3 * 0.48)  # nobody knows better
    for _ in range(10):
        pace.observe(16, 1, 0.48)
    assert pace.seconds(16, 1) == pytest.approx(0.48)
    assert pace.seconds(1, 5) == pytest.approx(0.6)


def test_the_first_draft_and_some_slow_ones_change_nothing():
    pace = timed()
    pace.observe(1, 5, 100.0)
    for number in range(15):
        pace.observe(1, 5, 10.0 if number % 3 == 0 else 0.2)
    assert pace.seconds(1, 5) == pytest.approx(0.2)


def test_the_start_counts_for_two_drafts():
    pace = timed()
    for _ in range(2):  # of which the first of all does not count
        pace.observe(1, 5, 2.0)
    assert pace.seconds(1, 5) == pytest.approx(0.2)
    for _ in range(2):
        pace.observe(1, 5, 2.0)
    assert pace.seconds(1, 5) == pytest.approx(2.0)


def test_once_it_is_doubted_a_few_drafts_outweigh_all_before():
    pace = timed()
    for _ in range(40):
        pace.observe(1, 5, 2.0)
        pace.observe_entering(1, 3, 0.7)
    pace.doubt()
    for seconds in (9.0, 0.2, 0.2, 0.2):  # the first says nothing again
        pace.observe(1, 5, seconds)
        pace.observe_entering(1, 3, seconds)
    assert pace.seconds(1, 5) == pytest.approx(0.2)
    assert pace.entering_s(1) == pytest.approx(0.2)


def test_what_is_frozen_stays():
    pace = timed()
    frozen = pace.freeze()
    for _ in range(10):
        pace.observe(1, 5, 2.0)
        pace.observe_entering(1, 3, 0.5)
    assert frozen.seconds(1, 5) == pytest.approx(0.2)
    assert frozen.entering_s(1) == pytest.approx(0.05)
    assert pace.seconds(1, 5) == pytest.approx(2.0)
    assert pace.entering_s(1) == pytest.approx(0.5)


def test_another_process_has_a_pace_of_its_own():
    pace = timed()
    for _ in range(10):
        pace.observe(1, 5, 2.0)
    pace.forget()
    assert pace.seconds(1, 5) == pytest.approx(0.2)


def test_who_catches_up_after_many_rounds_says_nothing_of_every_round():
    """A drafter that stands in now and then reads all that its row has made since."""
    pace = timed()
    for _ in range(10):
        pace.observe_entering(1, 60, 4.0)
    assert pace.entering_s(1) == 0.05
    for _ in range(10):
        pace.observe_entering(2, 6, 0.3)
    assert pace.entering_s(2) == pace.entering_s(1) == pytest.approx(0.3)
