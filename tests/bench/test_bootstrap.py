"""Rates over prompts and their intervals."""

import numpy as np
import pytest

from bench.bootstrap import Rate, interval, mean_ratio, ratio


def test_a_rate_weighs_prompts_by_their_rounds():
    rate = Rate.of([(10.0, 10.0), (30.0, 10.0), (8.0, 4.0)])
    assert interval(rate).value == pytest.approx(2.0)
    assert interval(rate).num_prompts == 3


def test_equal_prompts_have_no_spread():
    found = interval(Rate.of([(6.0, 2.0)] * 5))
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


def test_a_ratio_draws_the_same_prompts_for_both():
    # Prompts differ a lot, but one drafter is always a tenth better: pairing shows exactly that.
    generator = np.random.default_rng(3)
    rounds = generator.integers(5, 40, size=30).astype(float)
    tokens = rounds * generator.uniform(1.0, 6.0, size=30)
    base, better = Rate(tokens, rounds), Rate(1.1 * tokens, rounds)
    found = ratio(better, base)
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))
    alone = interval(base)
    assert alone.high - alone.low > 0.3  # unpaired, the spread would hide it


@pytest.mark.slow
def test_the_interval_covers_the_true_rate_about_as_often_as_it_claims():
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(50):
        rounds = generator.integers(10, 30, size=40).astype(float)
        found = interval(Rate(generator.poisson(2.5 * rounds).astype(float), rounds))
        covered += found.low <= 2.5 <= found.high
    assert 42 <= covered <= 50


def test_a_mean_over_domains_counts_every_domain_alike():
    large = (Rate.of([(2.0, 1.0)] * 100), Rate.of([(1.0, 1.0)] * 100))
    small = (Rate.of([(1.0, 1.0)] * 2), Rate.of([(1.0, 1.0)] * 2))
    found = mean_ratio([large, small])
    assert found.value == pytest.approx(1.5)
    assert found.num_prompts == 102


def test_pairs_on_the_same_prompts_are_no_more_certain_than_one_of_them():
    generator = np.random.default_rng(1)
    over = Rate(64 * generator.normal(1.0, 0.15, size=20), np.ones(20))
    pair = over, Rate(np.full(20, 64.0), np.ones(20))
    one, thrice = mean_ratio([pair]), mean_ratio([pair] * 3, ["code"] * 3)
    for name in ("value", "low", "high", "num_prompts"):
        assert getattr(thrice, name) == pytest.approx(getattr(one, name))
    apart = mean_ratio([pair] * 3, ["code", "prose", "sums"])
    assert apart == mean_ratio([pair] * 3)
    assert apart.num_prompts == 60
    assert apart.high - apart.low < 0.8 * (one.high - one.low)


def test_draws_without_anything_to_divide_by_are_left_out():
    found = interval(Rate.of([(1.0, 2.0), (0.0, 0.0)]))
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_rates_of_different_prompts_are_not_compared():
    with pytest.raises(ValueError, match="2 prompts against 1"):
        ratio(Rate.of([(1.0, 1.0)] * 2), Rate.of([(1.0, 1.0)]))
    one, two = (Rate.of([(1.0, 1.0)] * count) for count in (1, 2))
    with pytest.raises(ValueError, match="2 prompts against 1"):
        mean_ratio([(two, two), (one, one)], ["code", "code"])


@pytest.mark.parametrize("pairs", [[], [(0.0, 0.0)]])
def test_a_rate_over_nothing_is_refused(pairs):
    with pytest.raises(ValueError, match="nothing"):
        interval(Rate.of(pairs))
