"""How long drafts take is measured by few of them, and foretold of other sizes."""

import pytest

from specserve.drafters import draft_times
from specserve.drafters.draft_times import DraftTimes, measure
from specserve.types import DraftTime
from tests.scripted_time import ScriptedTime


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    monkeypatch.setattr(draft_times, "time", found)
    return found


def test_the_shortest_take_counts_and_chains_have_a_slope(time):
    takes = iter([9.0, 0.5, 0.0, 0.0, 0.7, 0.0])

    def draft(num_blocks, num_tokens):
        time.now_s += 0.01 + 0.02 * num_tokens + next(takes, 0.0) * 1e-3

    (one,) = measure(draft, [1], is_chain=True)
    assert (one.fixed_s, one.token_s) == (pytest.approx(0.01), pytest.approx(0.02))


def test_what_takes_one_pass_has_no_slope_and_slow_ones_end_early(time):
    def draft(num_blocks, num_tokens):
        assert num_tokens is None
        time.now_s += 0.3 * num_blocks

    times = measure(draft, [1, 4, 16], is_chain=False)
    assert times == [DraftTime(1, pytest.approx(0.3), 0.0)]


def test_sizes_between_and_beyond_are_foretold():
    times = DraftTimes([DraftTime(16, 1.0, 0.2), DraftTime(4, 0.4, 0.2)])
    assert times.seconds(4, 0) == times.seconds(1, 0) == 0.4
    assert times.seconds(10, 0) == pytest.approx(0.7)
    assert times.seconds(32, 1) == pytest.approx(2.4)
    assert times.go_by_token
    assert not DraftTimes([DraftTime(4, 0.4, 0.0)]).go_by_token


def test_where_nothing_was_measured_nothing_takes_time():
    assert DraftTimes().seconds(4, 5) == 0.0
