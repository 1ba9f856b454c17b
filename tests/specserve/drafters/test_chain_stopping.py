"""Chains end where another pass is likely to cost more than it brings."""

from dataclasses import replace

import pytest
import torch

from specserve.drafters.chain_stopping import ChainStopping
from specserve.drafters.protocol import DraftBatch, StoppingThreshold


def batch(threshold, num_blocks=1, least=1):
    return DraftBatch(
        [0] * num_blocks, torch.zeros(num_blocks).long(), threshold=threshold, least=least
    )


def num_passes(threshold, *confidences, pass_s=0.01, least=1):
    """Of chains whose tokens have these confidences, block by block."""
    chain = ChainStopping()
    chain.begin(batch(threshold, len(confidences), least))
    for count, known in enumerate(zip(*confidences, strict=True), start=1):
        if not chain.goes_on(known, pass_s):
            return count
    return len(confidences[0])


def test_without_a_worth_nothing_is_too_dear():
    chain = ChainStopping()
    chain.begin(batch(None))
    assert not chain.is_looking
    assert num_passes(None, [0.001] * 9) == 9


def test_sure_chains_are_longer():
    threshold = StoppingThreshold(
        tokens_per_s=30.0, token_price=0.1
    )  # a pass of 10 ms costs .3 tokens
    assert num_passes(threshold, [0.99] * 9) == 9
    assert 2 <= num_passes(threshold, [0.8] * 9) <= 4
    assert num_passes(threshold, [0.2] * 9) == 1


def test_a_dearer_pass_or_place_makes_them_shorter():
    likely = [0.9] * 9
    cheap = num_passes(StoppingThreshold(30.0, 0.05), likely)
    assert num_passes(StoppingThreshold(60.0, 0.05), likely) < cheap
    assert num_passes(StoppingThreshold(30.0, 0.4), likely) < cheap
    assert num_passes(StoppingThreshold(30.0, 0.05), likely, pass_s=0.02) < cheap


def test_one_sure_chain_takes_the_others_along():
    threshold = StoppingThreshold(30.0, 0.1)
    assert num_passes(threshold, [0.1] * 9, [0.99] * 9) == 9
    assert num_passes(threshold, [0.1] * 9, [0.1] * 9) == 1


def test_many_chains_share_a_pass():
    threshold = StoppingThreshold(40.0, 0.1)
    alone = num_passes(threshold, [0.7] * 9)
    assert num_passes(threshold, *[[0.7] * 9] * 4) > alone


def test_what_usually_stands_is_learned():
    threshold, chain = StoppingThreshold(30.0, 0.0), ChainStopping()
    for _ in range(300):
        chain.begin(batch(threshold))
        chain.goes_on([0.05], 0.01)
    chain.begin(batch(threshold))
    assert not chain.goes_on([0.99], 0.01)  # the next one is likely to be as bad as all others


def test_as_many_tokens_as_are_wanted_whatever_they_are_worth():
    threshold = StoppingThreshold(1e9, 1.0)
    assert [num_passes(threshold, [0.9] * 9, least=least) for least in (1, 2, 5)] == [1, 2, 5]


def test_without_looking_what_is_usual_decides():
    blind = StoppingThreshold(30.0, 0.1, may_look=False)
    lengths = {num_passes(blind, [sure] * 9) for sure in (0.0, 0.5, 1.0)}
    assert len(lengths) == 1
    assert 1 < lengths.pop() < 9


def test_what_is_no_probability_spoils_one_chain_alone():
    threshold, chain = StoppingThreshold(30.0, 0.1), ChainStopping()
    chain.begin(batch(threshold))
    assert not chain.goes_on([float("nan")], 0.01)
    chain.begin(batch(threshold))
    assert chain.goes_on([0.99], 0.01)


def test_a_chain_counts_as_much_as_it_is_likely_to_be_asked_for():
    threshold, confidences = StoppingThreshold(30.0, 0.1), ([0.99, 0.99], [0.1, 0.1])
    for chances, goes_on in (([1.0, 0.0], True), ([0.0, 1.0], False), ([0.2, 0.8], False)):
        chain = ChainStopping()
        chain.begin(replace(batch(threshold, 2), chances=chances))
        assert chain.goes_on([known[0] for known in confidences], 0.01) == goes_on


@pytest.mark.parametrize("price", [0.0, 0.5])
def test_where_time_is_worth_nothing_the_price_of_a_token_alone_decides(price):
    assert num_passes(StoppingThreshold(0.0, price), [0.8] * 9) == (9 if price == 0 else 2)
