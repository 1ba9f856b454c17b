"""What a token adds, from rounds of many sizes."""

import random

import pytest

from target_node.planning.token_times import MOST, SMOOTHING, TokenTimes

TURNING_POINT = 26.0


def learned(seconds_of, sizes):
    times = TokenTimes(TURNING_POINT)
    for size in sizes:
        times.add(size, seconds_of(size))
    return times


def some_sizes(count, seed=0):
    rng = random.Random(seed)
    return [rng.randint(1, 12) for _ in range(count)]


def test_rounds_of_one_size_leave_what_was_assumed():
    times = learned(lambda n: 0.03, [4] * 100)
    assert times.slope == pytest.approx(0.03 / (TURNING_POINT + 4))


def test_the_slope_of_rounds_that_differ():
    assert learned(lambda n: 0.02 + 0.002 * n, some_sizes(300)).slope == pytest.approx(
        0.002, rel=0.1
    )


def test_a_round_takes_what_the_line_says():
    times = learned(lambda n: 0.02 + 0.002 * n, some_sizes(300))
    assert times.expected(2) == pytest.approx(0.024, rel=0.05)
    assert times.expected(20) == pytest.approx(0.06, rel=0.05)
    assert learned(lambda n: 0.01 * n, some_sizes(300)).expected(0) >= 0


def test_no_token_is_for_free_or_saves_time():
    assert learned(lambda n: 0.05 - 0.002 * n, some_sizes(300)).slope == 0.0
    steep = learned(lambda n: 1e-6 + max(0.0, 0.01 * (n - 6)), some_sizes(300))
    assert steep.slope * 6.5 <= 0.011 * 6.5


def test_what_was_long_ago_is_forgotten():
    times = learned(lambda n: 0.02 + 0.002 * n, some_sizes(2000))
    for size in some_sizes(round(6 / SMOOTHING), seed=1):
        times.add(size, 0.02)
    assert times.slope < 0.0003


def test_a_round_that_was_held_up_counts_little():
    times = learned(lambda n: 0.03, [4] * 100)
    times.add(4, 60.0)
    assert times.slope < MOST * 0.03 / TURNING_POINT
