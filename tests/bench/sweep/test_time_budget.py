"""How many requests there is time for."""

import pytest

from bench.sweep.plan import FULL, Load
from bench.sweep.time_budget import affordable, allowance_s, expected_s


@pytest.mark.parametrize(
    ("allowed_s", "count"),
    [(1000.0, 20), (40.0, 20), (39.0, 19), (20.0, 10), (3.0, 4), (0.0, 4)],
)
def test_a_comparison_is_shortened_to_its_allowance_but_not_below_the_least(allowed_s, count):
    assert affordable(20, 4, request_s=2.0, allowance_s=allowed_s) == count


def test_never_more_than_planned():
    assert affordable(2, 4, request_s=2.0, allowance_s=0.0) == 2


def test_what_is_left_is_shared_out_by_what_comparisons_are_expected_to_take():
    assert allowance_s(100.0, [1.0, 3.0]) == 25.0
    assert allowance_s(100.0, [2.0]) == 100.0
    assert allowance_s(-5.0, [2.0, 1.0]) == 0.0


def test_more_arms_take_longer_and_requests_side_by_side_less():
    alone, many = Load(in_flight=1), Load(in_flight=8)
    assert expected_s(alone, FULL, 4) == 2 * expected_s(alone, FULL, 2)
    assert expected_s(many, FULL, 4) < expected_s(alone, FULL, 4)
    slow, fast = (Load(rate=rate, arrivals="poisson") for rate in (0.1, 10.0))
    assert expected_s(slow, FULL, 1) > 160 > 10 > expected_s(fast, FULL, 1)
