"""The formulas give the figures that Monte Carlo and brute force gave for them."""

import math

import pytest

from bench.ssd_formulas import (
    accept_rate_of,
    batch_speedup,
    critical_batch_size,
    expected_tokens,
    geometric_fan_out,
    hit_rate,
    over_synchronous,
    prepared_share,
    speedup,
    synchronous_speedup,
)


def test_expected_tokens():
    assert expected_tokens(0.8, 7) == pytest.approx(4.161139, abs=1e-6)
    assert expected_tokens(0.8, 5) == pytest.approx(3.689280, abs=1e-6)
    assert expected_tokens(1.0, 5) == 6


@pytest.mark.parametrize("rate", [0.1, 0.55, 0.93])
def test_what_rate_makes_so_many_tokens(rate):
    assert accept_rate_of(expected_tokens(rate, 6), 6) == pytest.approx(rate, abs=1e-9)


def test_a_synchronous_round_drafts_and_verifies():
    assert synchronous_speedup(3.0, 0.5) == pytest.approx(2.0)


def test_theorem_7():
    assert hit_rate(0.9, 0.6) == pytest.approx(0.857143, abs=1e-6)
    assert hit_rate(0.85, 0.85) == pytest.approx(0.85)
    for p, hit_len, miss_len, draft, backup, expected in (
        (0.857142857, 4, 1.5, 0.8, 0.1, 3.591549),
        (0.85, 4.161139, 4.161139, 0.6, 0.6, 3.817559),
        (0.75, 4.161139, 1, 1.2, 0, 2.931178),
    ):
        found = speedup(p, hit_len, miss_len, draft_time=draft, backup_time=backup)
        assert found == pytest.approx(expected, abs=1e-5)


def test_corollary_9():
    assert over_synchronous(0.85, 4.2, 3.8, 0.5) == pytest.approx((1.468421, 1.657895), abs=1e-6)


@pytest.mark.parametrize(("rows", "expected"), [(1, 3.256881), (4, 2.758790), (16, 2.282299)])
def test_corollary_16(rows, expected):
    assert batch_speedup(rows, 0.85, 4, 1, 0.6) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "slow", "fast", "time", "expected"),
    [
        (0.85, 4, 1, 0.6, 1.460311),
        (0.9, 4, 1, 0.6, 1.377955),
        (0.95, 5, 1, 0.5, 1.696350),
        (0.85, 4, 1, 0.12, math.inf),
    ],
)
def test_theorem_17(p, slow, fast, time, expected):
    assert critical_batch_size(p, slow, fast, time) == pytest.approx(expected, abs=1e-6)


def test_theorem_17_where_the_fast_backup_makes_hits_rarer():
    fast_hits = hit_rate(0.88, 0.6)
    found = critical_batch_size(0.88, 4, 1, 0.6, fast_hit_rate=fast_hits)
    assert found == pytest.approx(2.127251, abs=1e-6)


@pytest.mark.parametrize(
    ("budget", "lookahead", "rate", "power", "expected", "share"),
    [
        (24, 7, 0.8, 1, [3.8971, 3.4857, 3.1177, 2.7885, 2.4942, 2.2308, 1.9953, 3.9906], 0.683951),
        (24, 7, 0.6, 1, [6.0625, 4.6960, 3.6375, 2.8176, 2.1825, 1.6906, 1.3095, 1.6038], 0.738804),
        (12, 3, 0.7, 0.5, [3.4253, 2.7004, 2.1290, 3.7453], 0.432130),
    ],
)
def test_theorems_12_and_18(budget, lookahead, rate, power, expected, share):
    found = geometric_fan_out(budget, lookahead, rate, power)
    assert found == pytest.approx(expected, abs=1e-4)
    assert prepared_share(found, rate, power) == pytest.approx(share, abs=1e-6)
    uniform = prepared_share([budget / (lookahead + 1)] * (lookahead + 1), rate, power)
    assert uniform < share
