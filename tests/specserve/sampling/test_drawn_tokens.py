"""Tokens that are drawn have the distribution that they are drawn by: chi-square tests."""

import pytest
import torch

from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import sample, target_probs
from tests.specserve.sampling.test_sampling import random_logits, state


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"top_k": 6, "top_p": 0.9, "min_p": 0.02, "frequency_penalty": 0.5},
        *(
            pytest.param(fields, marks=pytest.mark.slow)
            for fields in (
                {"temperature": 0.5},
                {"temperature": 1.7, "top_k": 5},
                {"top_p": 0.8},
                {"min_p": 0.1},
                {"repetition_penalty": 1.5, "logit_bias": {0: 1.0, 7: -2.0}},
            )
        ),
    ],
)
def test_tokens_have_the_distribution_of_target_probs(fields):
    """Chi-square over 40,000 positions, false-alarm rate 1e-6 a case (once, as seeds are fixed)."""
    num_rows, num_tokens = 40_000, 8
    logits = random_logits(1, num_tokens, seed=8)
    one = state(output=(2, 2, 5), seed=99, **fields)
    batch = SamplingBatch.build([one])
    probs = target_probs(logits, batch)[0].double()
    states = []
    for position in range(num_rows):
        s = one.fork()
        s.position = position
        states.append(s)
    drawn = sample(logits.expand(num_rows, -1).contiguous(), SamplingBatch.build(states)).token_ids
    counts = torch.bincount(drawn, minlength=num_tokens).double()
    possible = probs > 0
    assert counts[~possible].sum() == 0
    expected = probs[possible] * num_rows
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = int(possible.sum()) - 1
    assert chi_square_tail(statistic, freedom) > 1e-6
    # Power: the same counts must refute a distribution that is off by a tenth of itself in one
    # token.
    wrong = probs[possible].clone()
    wrong[wrong.argmax()] *= 0.9
    wrong *= num_rows / wrong.sum()
    if freedom:
        statistic = ((counts[possible] - wrong) ** 2 / wrong).sum()
        assert chi_square_tail(statistic, freedom) < 1e-6


def chi_square_tail(statistic, freedom):
    if freedom == 0:
        return 1.0
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return torch.special.gammaincc(half, statistic / 2).item()


def test_successive_positions_are_independent():
    """Pairs of neighbouring draws against the product distribution, chi-square at 1e-6."""
    num_rows = 20_000
    logits = torch.tensor([[0.0, 0.7, -0.4]])
    one = state(seed=3)
    states = []
    for position in range(num_rows):
        s = one.fork()
        s.position = position
        states.append(s)
    drawn = sample(logits.expand(num_rows, -1).contiguous(), SamplingBatch.build(states)).token_ids
    pairs = torch.bincount(drawn[0::2] * 3 + drawn[1::2], minlength=9).double()
    probs = logits[0].double().softmax(0)
    expected = torch.outer(probs, probs).flatten() * (num_rows // 2)
    assert chi_square_tail(((pairs - expected) ** 2 / expected).sum(), 8) > 1e-6
