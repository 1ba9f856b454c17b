"""Rates over prompts and their intervals."""

import numpy as np
import pytest

from bench.bootstrap import Rate, combined, interval, mean_ratio, quantiles, ratio


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


def test_clusters_that_differ_widen_an_interval_beyond_that_of_their_prompts():
    pairs = [(speed, 1.0) for speed in (8.0, 10.0, 12.0) for _ in range(50)]
    clusters = [cluster for cluster in range(3) for _ in range(50)]
    apart, together = interval(Rate.of(pairs)), interval(Rate.of(pairs, clusters))
    assert together.value == apart.value == pytest.approx(10.0)
    assert (together.low, together.high) == pytest.approx((8.0, 12.0))
    assert apart.high - apart.low < 1.0


def test_one_cluster_is_as_none():
    pairs = [(1.0, 2.0), (3.0, 2.0), (2.0, 5.0)]
    assert interval(Rate.of(pairs, ["a"] * 3)) == interval(Rate.of(pairs))


def test_a_figure_of_several_rates_draws_the_same_prompts_for_all():
    base = Rate.of([(float(n), 1.0) for n in range(1, 20)])
    double, triple = (Rate(times * base.over, base.under) for times in (2.0, 3.0))
    found = combined([base, double, triple], lambda a, b, c: (c / a - 1) / (b / a - 1))
    assert (found.low, found.value, found.high) == pytest.approx((2.0, 2.0, 2.0))
    with pytest.raises(ValueError, match="19 prompts against 1"):
        combined([base, Rate.of([(1.0, 1.0)])], lambda a, b: a / b)
    with pytest.raises(ValueError, match="over nothing"):
        combined([Rate.of([(1.0, 0.0)])], lambda a: a)


def test_quantiles_are_values_with_intervals_that_clusters_widen():
    values = [float(n) for n in range(1, 101)]
    median, most = quantiles(values, (0.5, 1.0))
    assert (median.value, most.value, most.high) == (50.0, 100.0, 100.0)
    assert 35 < median.low < 50 < median.high < 65
    halves = [int(n > 50) for n in values]
    (wide,) = quantiles(values, (0.5,), halves)
    assert wide.high - wide.low > 2 * (median.high - median.low)
    assert quantiles([7.0], (0.5,))[0].value == 7.0
    with pytest.raises(ValueError, match="no values"):
        quantiles([], (0.5,))
