"""Where a device serves faster follows from what drafting and splitting the target take."""

import pytest

from bench.ssd_formulas import expected_tokens, speedup, synchronous_speedup
from specserve.settings.device_use import (
    DeviceUse,
    gain_of_drafting,
    kept_tokens,
    least_draft_share,
)


@pytest.mark.parametrize("hits", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("scaling", [1.0, 1.4, 2.0])
def test_the_gain_is_the_ratio_of_the_formulas(hits, scaling):
    """SSD, Theorem 7 with drafts in time, over a synchronous round with shorter forwards."""
    length, share = expected_tokens(0.8, 5), 0.35
    asynchronous = speedup(hits, length, 1.0, draft_time=0.9, backup_time=0.0)
    synchronous = synchronous_speedup(length, share * scaling) * scaling
    use = DeviceUse(share, scaling, kept=kept_tokens(hits, length))
    assert gain_of_drafting(use) == pytest.approx(asynchronous / synchronous)


@pytest.mark.parametrize("options", [{}, {"kept": 0.9}, {"slower": 1.1, "draft_scaling": 1.3}])
def test_at_the_least_share_both_are_as_fast(options):
    share = least_draft_share(1.6, **options)
    assert gain_of_drafting(DeviceUse(share, 1.6, **options)) == pytest.approx(1.0)
    assert gain_of_drafting(DeviceUse(1.1 * share, 1.6, **options)) > 1


def test_a_device_that_the_target_gains_nothing_by_drafts_whatever_drafting_takes():
    assert least_draft_share(1.0) == 0
    assert least_draft_share(0.8) == 0
    assert gain_of_drafting(DeviceUse(0.01, 1.0)) > 1


def test_who_drafts_in_no_time_is_better_left_where_it_is():
    assert gain_of_drafting(DeviceUse(0.0, 1.5)) < 1


def test_misses_keep_one_token_of_a_round():
    assert kept_tokens(1.0, 4.0) == 1
    assert kept_tokens(0.0, 4.0) == pytest.approx(0.25)
