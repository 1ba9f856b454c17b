"""DSpark's counterexample: a schedule that looks at the drafted token changes the distribution."""

import math
from collections import defaultdict

import pytest
import torch

from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.enumeration.sequences import rounds_of
from tests.exactness.enumeration.toy import Toy
from tests.specserve.sampling.random_probs import likeliest_probs

A, B = 0, 1
TARGET, DRAFT = [0.7, 0.3], [0.5, 0.5]
STEPS_PER_SECOND = [1.0, 0.5, 0.45]  # by verified tokens, 1 to 3
FIRST_CONFIDENCE = 0.8


class AppendixA(Toy):
    def logits(self, context):
        return [math.log(p) for p in TARGET]

    def draft_probs(self, context):
        return likeliest_probs(torch.tensor([DRAFT], dtype=torch.float64), 2)


def survivals(first_token):
    """Known before the draw, then known after it: the second confidence depends on the token."""
    return [FIRST_CONFIDENCE, FIRST_CONFIDENCE * (0.9 if first_token == A else 0.0)]


def throughput(survival, verify_len):
    return (1 + sum(survival[:verify_len])) * STEPS_PER_SECOND[verify_len]


def causal(first_token):
    """Stops at the first place that does not pay, before it looks at what follows."""
    verify_len = 0
    survival = survivals(first_token)
    while verify_len < 2 and throughput(survival, verify_len + 1) > throughput(
        survival, verify_len
    ):
        verify_len += 1
    return verify_len


def retrospective(first_token):
    """The best of all lengths, drafted tokens known."""
    return max(range(3), key=lambda n: throughput(survivals(first_token), n))


def distribution_of_first_token(schedule, method):
    rounds = rounds_of(AppendixA(num_tokens=2, gamma=2, num_kept=2), method, 1)
    distribution = defaultdict(float)
    for first_token in (A, B):
        choices = rounds[(), schedule(first_token)]
        seen = [c for c in choices if not c[1] or c[1][0] == first_token]
        total = sum(prob for prob, *_ in seen)
        for prob, drafted, num_accepted, next_token in seen:
            token_id = drafted[0] if num_accepted else next_token
            distribution[token_id] += DRAFT[first_token] * prob / total
    return [distribution[A], distribution[B]]


RATIO_METHODS = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_causal_schedule_verifies_nothing_and_is_exact(method):
    assert [causal(token) for token in (A, B)] == [0, 0]
    assert distribution_of_first_token(causal, method) == pytest.approx([0.7, 0.3], abs=1e-12)


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_retrospective_schedule_is_caught(method):
    assert [retrospective(token) for token in (A, B)] == [2, 0]
    assert distribution_of_first_token(retrospective, method) == pytest.approx(
        [0.85, 0.15], abs=1e-12
    )


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_any_schedule_blind_to_the_token_is_exact(method):
    for verify_len in range(3):
        distribution = distribution_of_first_token(lambda token, n=verify_len: n, method)
        assert distribution == pytest.approx([0.7, 0.3], abs=1e-12)
