"""Percentiles of tokens in their distributions, and distributions from log probabilities."""

import random
from math import exp, log

import pytest

from specserve.audit.token_distribution import IMPOSSIBLE, SamplingCase, TokenDistribution, fit
from specserve.types import Logprobs

DISTRIBUTIONS = (
    TokenDistribution({4: 0.5, 2: 0.3, 9: 0.2}, is_whole=True),
    TokenDistribution({7: 0.9, 1: 0.06}, is_whole=False),
)


def record(probs: dict[int, float]) -> Logprobs:
    values = [log(prob) for prob in probs.values()]
    return Logprobs(token_id=0, logprob=0.0, rank=1, top_ids=list(probs), top_logprobs=values)


def test_percentiles_are_uniform_whatever_the_distributions():
    rng = random.Random(1)
    percentiles = []
    for _ in range(4000):
        distribution = rng.choice(DISTRIBUTIONS)
        tokens, probs = (
            [*distribution.named, 5],
            [*distribution.named.values(), 1 - sum(distribution.named.values())],
        )
        token = rng.choices(tokens, [max(0.0, prob) for prob in probs])[0]
        percentiles.append(distribution.percentile(token, rng.random()))
    assert fit(percentiles).p_value > 1e-3
    assert fit(percentiles).num_cells == 8
    greedy = [DISTRIBUTIONS[0].percentile(4, rng.random()) for _ in range(400)]
    assert fit(greedy).p_value < 1e-9


def test_false_alarms_of_screening_are_as_rare_as_stated():
    rng = random.Random(2)
    values = sorted(fit([rng.random() for _ in range(60)]).p_value for _ in range(2000))
    assert all(abs(p - rank / 2000) < 0.08 for rank, p in enumerate(values))


def test_a_token_that_the_distribution_does_not_have_is_fatal():
    assert DISTRIBUTIONS[0].percentile(5, 0.3) == IMPOSSIBLE
    assert DISTRIBUTIONS[1].percentile(5, 0.5) == pytest.approx(0.98)
    assert fit([]).p_value == 1
    assert fit([0.1 * k for k in range(10)] * 20).p_value > 0
    assert fit([*[0.1 * k for k in range(10)] * 20, IMPOSSIBLE]).p_value == 0


def test_penalties_and_top_k_make_the_distribution_that_is_sampled_from():
    case = SamplingCase("p", temperature=0.5, top_k=2, presence_penalty=1.0, frequency_penalty=0.5)
    probs = {3: 0.4, 8: 0.3, 5: 0.2, 6: 0.02, 1: 0.01}
    assert list(case.distribution(record(probs), [], 1e-3).named) == [3, 8]
    distribution = case.distribution(record(probs), [3, 3, 77], 1e-3)  # 3 is penalised by 2
    assert list(distribution.named) == [8, 5]
    assert distribution.named[8] / distribution.named[5] == pytest.approx((0.3 / 0.2) ** 2)
    assert distribution.doubt == pytest.approx(1 - distribution.named[8])
    assert sum(distribution.named.values()) == pytest.approx(1)


def test_a_distribution_whose_support_rounding_could_change_is_none():
    case = SamplingCase("t", top_k=2)
    near = {3: 0.4, 8: 0.2, 5: 0.2 * exp(-0.01), 6: 0.02}
    assert case.distribution(record(near), [], 0.02) is None
    assert case.distribution(record(near), [], 0.001) is not None
    # With everything named penalised, a token without a name might be in.
    hidden = SamplingCase("h", top_k=2, presence_penalty=9.0)
    assert hidden.distribution(record(near), list(near), 0.001) is None
