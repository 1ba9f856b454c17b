"""Medians and ratios that the benches report."""

import numpy as np
import pytest

from bench.stats import paired_ratio


def test_the_ratio_of_equal_arms_is_one_without_spread():
    ratio = paired_ratio([3.0, 5.0, 8.0], [3.0, 5.0, 8.0])
    assert (ratio.value, ratio.low, ratio.high, ratio.num_pairs) == (1.0, 1.0, 1.0, 3)


def test_a_slow_spell_that_meets_both_arms_cancels():
    speeds = np.array([1.0, 1.0, 5.0, 9.0])
    ratio = paired_ratio(list(2 * speeds), list(speeds))
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_claims():
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        noise = generator.lognormal(0.0, 0.1, size=(2, 25))
        ratio = paired_ratio(list(1.3 * noise[0]), list(noise[1]))
        covered += ratio.low <= 1.3 <= ratio.high
    assert 85 <= covered <= 100


def test_one_wild_pair_does_not_move_the_median():
    ratio = paired_ratio([1.1, 1.1, 1.1, 1.1, 40.0], [1.0] * 5)
    assert ratio.value == pytest.approx(1.1)


@pytest.mark.parametrize(("over", "under"), [([], []), ([1.0], [1.0, 2.0])])
def test_lists_that_are_not_pairs_are_refused(over, under):
    with pytest.raises(ValueError, match="numerators"):
        paired_ratio(over, under)
