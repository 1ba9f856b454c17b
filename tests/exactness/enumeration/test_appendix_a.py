"""DSpark's counterexample: a schedule that looks at the drafted token changes the distribution."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from specserve.sampling.verification.admission import PlanningSnapshot, RoundFacts
from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.policies import EXACT_FOR, policy_named
from tests.exactness.enumeration.sequences import rounds_of
from tests.exactness.enumeration.toy import Toy
from tests.specserve.sampling.random_probs import likeliest_probs

A, B = 0, 1
TARGET, DRAFT = [0.7, 0.3], [0.5, 0.5]
STEPS_PER_SECOND = [1.0, 0.5, 0.45]  # by verified tokens, 1 to 3
FIRST_CONFIDENCE = 0.8
RATIO_METHODS = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]


class AppendixA(Toy):
    def logits(self, context):
        return [math.log(p) for p in TARGET]

    def draft_probs(self, context):
        return likeliest_probs(torch.tensor([DRAFT], dtype=torch.float64), 2)


def survivals(first_token):
    """Known before the draw, then known after it: the second confidence depends on the token."""
    return [FIRST_CONFIDENCE, FIRST_CONFIDENCE * (0.9 if first_token == A else 0.0)]


class Table:
    """`StepCosts` of the counterexample; the anchor is the first token."""

    def seconds(self, num_tokens):
        return 1 / np.array(STEPS_PER_SECOND)[num_tokens - 1]


def scheduled(name, before=None):
    """What a policy that is shipped verifies of the block, by its first token."""

    def verify_len(first_token):
        facts = RoundFacts(
            PlanningSnapshot(costs=Table()), num_tokens=1, before=[before or survivals(A)]
        )
        return policy_named(name).allocate([survivals(first_token)], 2, facts)[0]

    return verify_len


causal, retrospective = scheduled("causal"), scheduled("global")


@pytest.mark.parametrize(("before", "verify_len"), [([0.8, 0.72], 2), ([0.8, 0.0], 0)])
@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_barrier_is_exact_whatever_it_saw_two_rounds_before(method, before, verify_len):
    barrier = scheduled("barrier", before)
    assert barrier(A) == verify_len
    assert distribution_of_first_token(barrier, method) == pytest.approx([0.7, 0.3], abs=1e-12)


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


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_causal_schedule_verifies_nothing_and_is_exact(method):
    assert [causal(token) for token in (A, B)] == [0, 0]
    assert distribution_of_first_token(causal, method) == pytest.approx([0.7, 0.3], abs=1e-12)


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_retrospective_schedule_is_caught(method):
    """And refused: see `EXACT_FOR`."""
    assert method not in EXACT_FOR["global"]
    assert [retrospective(token) for token in (A, B)] == [2, 0]
    assert distribution_of_first_token(retrospective, method) == pytest.approx(
        [0.85, 0.15], abs=1e-12
    )


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_any_schedule_blind_to_the_token_is_exact(method):
    for verify_len in range(3):
        distribution = distribution_of_first_token(lambda token, n=verify_len: n, method)
        assert distribution == pytest.approx([0.7, 0.3], abs=1e-12)
