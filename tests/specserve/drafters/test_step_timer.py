"""Chains end before their deadline, but never before they are of any use."""

import pytest

from specserve.drafters import step_timer
from specserve.drafters.step_timer import LEAST_PASSES, StepTimer
from tests.scripted_time import ScriptedTime


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    monkeypatch.setattr(step_timer, "time", found)
    return found


def passes(clock, time, due_s, took_s):
    """How many passes a call makes if each takes as long as the next of `took_s`."""
    clock.begin(time.now_s + due_s)
    count = 0
    for seconds in took_s:
        time.now_s += seconds
        count += 1
        if not clock.goes_on():
            break
    return count


def test_as_many_passes_as_fit(time):
    clock = StepTimer()
    assert passes(clock, time, 4.5, [1.0] * 9) == 4
    assert passes(clock, time, 100.0, [1.0] * 9) == 9


def test_a_block_has_two_tokens_however_late_it_is(time):
    assert passes(StepTimer(), time, -1.0, [1.0] * 9) == LEAST_PASSES == 2


def test_without_a_deadline_nothing_is_cut(time):
    assert passes(StepTimer(), time, float("inf"), [1000.0] * 9) == 9


def test_what_follows_the_last_pass_has_to_be_in_time_too(time):
    clock = StepTimer()
    assert passes(clock, time, 4.5, [1.0] * 9) == 4
    time.now_s += 0.6  # its token is drawn
    clock.end()
    assert passes(clock, time, 4.5, [1.0] * 9) == 3
    assert passes(clock, time, 4.7, [1.0] * 9) == 4


def test_one_slow_pass_does_not_end_a_chain_that_has_time(time):
    clock = StepTimer()
    passes(clock, time, 100.0, [1.0] * 9)
    assert passes(clock, time, 12.0, [6.0, *[1.0] * 9]) == 7
    assert passes(clock, time, 12.0, [1.0, 6.0, *[1.0] * 9]) == 6


def test_a_long_first_pass_does_not_make_further_ones_look_long(time):
    """Pending tokens enter with it; chains of two passes would never be longer again."""
    clock = StepTimer()
    for _ in range(20):
        passes(clock, time, 0.0, [5.0, 1.0])
    assert passes(clock, time, 10.5, [5.0, *[1.0] * 9]) == 6


def test_a_further_pass_is_timed_apart_from_first_ones_and_by_how_many_blocks_it_has(time):
    clock = StepTimer()
    for num_blocks, took_s in ((1, [9.0, 1.0, 1.0]), (16, [30.0, 5.0, 5.0])):
        for _ in range(20):
            clock.begin(float("inf"), num_blocks)
            for seconds in took_s:
                time.now_s += seconds
                clock.goes_on()
        assert clock.further_s == pytest.approx(took_s[1], rel=0.05)
    clock.begin(float("inf"), 1)
    assert clock.further_s == pytest.approx(1.0, rel=0.05)
    for _ in range(400):  # calls of one pass each
        clock.begin(float("inf"), 1)
    assert clock.further_s < 0.05
