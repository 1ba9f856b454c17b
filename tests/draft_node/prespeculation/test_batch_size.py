"""Blocks of a draft batch against the time there is, and chains against what they bring."""

import math

import numpy as np
import pytest

from draft_node.prespeculation.batch_size import BatchSize
from draft_node.prespeculation.fan_out import AcceptancePrior

FLAT = [np.full(32, 1 / 32)]


def learned(*, by_token, seconds_of, num_tokens=5, accepted=8, usual=8):
    """Sizes that have seen draft batches of different sizes; tokens a block accepted: of 8."""
    prior = AcceptancePrior(8)
    for _ in range(2000):
        prior.observe(8, accepted)
    sizes = BatchSize(prior, by_token=by_token, usual_tokens=usual)
    for num_blocks in [8, 12, 4, 16, 2] * 20:
        seconds = seconds_of(num_blocks) * (num_tokens if by_token else 1)
        sizes.observe(
            needs_probs=False, num_blocks=num_blocks, num_tokens=num_tokens, seconds=seconds
        )
    return sizes


def size_of(sizes, left_s, values=FLAT, *, needs_probs=False, most=16):
    return sizes.size(most, needs_probs=needs_probs, left_s=left_s, values=values)


@pytest.mark.parametrize("by_token", [False, True])
def test_draft_batches_are_whole_where_nobody_knows_how_long_they_take(by_token):
    sizes = learned(by_token=by_token, seconds_of=lambda n: 0.001 * n)
    assert size_of(sizes, 0.002, needs_probs=True) == 16
    assert size_of(sizes, math.inf) == 16


def test_blocks_are_as_many_as_are_over_in_time():
    sizes = learned(by_token=False, seconds_of=lambda n: 0.002 + 0.001 * n)
    assert [size_of(sizes, seconds) for seconds in (0.1, 0.0112, 0.001)] == [16, 8, 0]


def test_chains_are_few_and_long_where_they_are_accepted_and_the_first_outcome_is_likely():
    values = [np.array([0.9, *[0.001] * 31])]
    sizes = learned(by_token=True, seconds_of=lambda n: 0.001 + 0.001 * n)
    assert size_of(sizes, 0.017, values) == 1


def test_chains_are_many_and_short_where_nothing_is_accepted():
    sizes = learned(by_token=True, seconds_of=lambda n: 0.001 + 0.001 * n, accepted=0)
    assert size_of(sizes, 0.017 * 3) == 16


def test_chains_that_cost_next_to_nothing_each_are_as_many_as_may_be():
    sizes = learned(by_token=True, seconds_of=lambda n: 0.003 + 1e-6 * n)
    assert size_of(sizes, 0.030) == 16


def test_rows_share_a_draft_batch_and_the_likeliest_outcomes_count():
    sizes = learned(by_token=True, seconds_of=lambda n: 0.001 + 0.001 * n)
    certain = [np.array([0.9, 0.001]), np.array([0.9, 0.001])]
    assert size_of(sizes, 0.030, certain) == 2


def test_no_chain_is_begun_that_would_be_of_no_use():
    sizes = learned(by_token=True, seconds_of=lambda n: 0.010 + 0.001 * n)
    assert size_of(sizes, 0.015) == 0
    assert size_of(sizes, 0.025) > 0


def test_a_draft_batch_of_many_rows_may_be_larger():
    sizes = learned(by_token=True, seconds_of=lambda n: 0.003 + 1e-6 * n)
    assert size_of(sizes, 0.030, most=32) == 32


def test_chains_are_no_longer_than_usual_for_the_sake_of_time_that_is_left():
    """Sizes are as if longer ones were not to be had: whether they pay is seen while drafting."""
    values = [np.array([0.5, 0.3, 0.1, 0.05])]
    short, long = (
        learned(by_token=True, seconds_of=lambda n: 0.001 + 0.001 * n, usual=usual)
        for usual in (3, 8)
    )
    assert size_of(short, 0.015, values) > size_of(long, 0.015, values)


@pytest.mark.parametrize("seen", [2, 6])
def test_what_a_draft_batch_takes_before_its_first_token_is_no_tokens_time(seen):
    """However short the chains were that it was learned from."""
    prior = AcceptancePrior(8)
    for _ in range(2000):
        prior.observe(8, 8)
    sizes = BatchSize(prior, by_token=True, usual_tokens=8)
    for num_blocks in [8, 12, 4, 16, 2] * 20:
        token_s = 0.0001 + 0.00003 * num_blocks
        seconds = 0.0015 + 0.00005 * num_blocks + (seen - 1) * token_s
        figures = {"num_blocks": num_blocks, "num_tokens": seen, "token_s": token_s}
        sizes.observe(needs_probs=False, seconds=seconds, **figures)
    # 4 chains of 8 tokens take 3.2 ms, 16 of them 6.4.
    certain = [np.array([0.3, 0.3, 0.2, 0.1, *[1e-4] * 12])]
    assert size_of(sizes, 0.0033, certain) == 4
    assert size_of(sizes, 0.0065, FLAT) == 16
    assert 1 <= size_of(sizes, 0.0020, certain) < 16
