"""One round by the real `verify`, its random choices replaced by every possible one in turn.

Each row of the batch is one combination of drafted tokens and choices; what the real code made of
its probabilities at the choice points is recorded, so a row comes back with an outcome and its
exact probability. The distributions are float64; arithmetic, indexing and acceptance are the
service's.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass

import pytest
import torch

from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.sampling import NO_TOKEN, Sampled, target_probs
from specserve.sampling.verification import batch as batch_module
from specserve.sampling.verification import verify as verify_module
from specserve.sampling.verification.batch import RowToVerify, VerificationBatch
from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.enumeration.shared_noise import joint_distribution


@dataclass(frozen=True)
class Case:
    """One row: what was generated, what is drafted, what chance decides."""

    context: tuple
    drafted: tuple
    choices: (
        tuple  # ratio methods: accept or not, for each drafted token; equality: target's tokens
    )
    winner: int = NO_TOKEN  # ratio methods: of the sampling of the next token


def outcomes(toy, method, contexts):
    """(context, verify_len) to a list of (probability, drafted, num_accepted, next_token).

    All contexts and all lengths 0..gamma go through one call, in one mixed batch; its groups are
    judged one after the other, so cases stand in their order.
    """
    rows = [
        (RowToVerify(method, toy.state(case.context), case.drafted), case)
        for case in _cases(toy, method, contexts)
    ]
    rows.sort(key=lambda row: batch_module._kind(row[0]))
    cases = [case for _, case in rows]
    batch = VerificationBatch.build([row for row, _ in rows])
    distributions = _Distributions(toy)
    logits = [toy.logits(path) for case in cases for path in _paths(case)]
    logits = torch.tensor(logits, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        if method is VerificationMethod.COUPLED:
            chances = _patch_sample(patch, cases, distributions)
            found = verify_module.verify(logits, batch)
        else:
            chances = _patch_ratio(patch, cases)
            drafted = [distribution for case in cases for distribution in distributions.along(case)]
            found = verify_module.verify(logits, batch, _stack(drafted))
    assert not found.bad_rows.any()
    assert not found.broken_probs.any()
    table = defaultdict(list)
    for case, chance, num_accepted, next_token in zip(
        cases, chances(), found.num_accepted.tolist(), found.next_tokens.tolist(), strict=True
    ):
        prob = (
            chance
            if method is VerificationMethod.COUPLED
            else chance * distributions.of_draft(case)
        )
        if prob:
            key = (case.context, len(case.drafted))
            table[key].append((prob, case.drafted, num_accepted, next_token))
    return table


def _cases(toy, method, contexts):
    """Every combination that has a probability above zero at the draft."""
    tokens = range(toy.num_tokens)
    distributions = _Distributions(toy)
    for context, verify_len in itertools.product(contexts, range(toy.gamma + 1)):
        for drafted in itertools.product(tokens, repeat=verify_len):
            if method is VerificationMethod.COUPLED:
                for targets in itertools.product(tokens, repeat=verify_len + 1):
                    yield Case(context, drafted, targets)
            elif distributions.of_draft(Case(context, drafted, ())) > 0:
                for accepted in itertools.product((True, False), repeat=verify_len):
                    for winner in tokens:
                        yield Case(context, drafted, accepted, winner)


def _paths(case):
    """The contexts of a row's logits."""
    return [case.context + case.drafted[:i] for i in range(len(case.drafted) + 1)]


class _Distributions:
    """The draft's distributions along drafted paths, made once a context."""

    def __init__(self, toy):
        self.toy = toy
        self.cache = {}

    def at(self, path):
        if path not in self.cache:
            distribution = self.toy.draft_probs(path)
            dense = [float(distribution.at(torch.tensor([i]))) for i in range(self.toy.num_tokens)]
            self.cache[path] = (distribution, dense)
        return self.cache[path]

    def along(self, case):
        return [self.at(path)[0] for path in _paths(case)[:-1]]

    def of_draft(self, case):
        """The probability of drafting the case's tokens."""
        prob = 1.0
        for path, token_id in zip(_paths(case)[:-1], case.drafted, strict=True):
            prob *= self.at(path)[1][token_id]
        return prob


def _stack(distributions):
    return DraftProbs(
        torch.cat([distribution.ids for distribution in distributions]),
        torch.cat([distribution.probs for distribution in distributions]),
    )


def _patch_ratio(patch, cases):
    """Replaces what decides acceptance and samples; gives their probabilities."""
    decided = torch.tensor([choice for case in cases for choice in (*case.choices, False)])
    winners = torch.tensor([case.winner for case in cases])
    seen = {"accept": [], "winner": []}

    def accepts(uniforms, probs):
        own = decided[len(seen["accept"]) :][: len(uniforms)]
        seen["accept"] += torch.where(own, probs, 1 - probs).tolist()
        return own

    def exponential_sample(noise, weights):
        assert noise.shape == weights.shape
        own = winners[len(seen["winner"]) :][: len(weights)]
        distribution = weights / weights.sum(dim=1, keepdim=True)
        seen["winner"] += distribution.gather(1, own.unsqueeze(1)).squeeze(1).tolist()
        return own

    def chances():
        assert len(seen["accept"]) == len(decided)
        assert len(seen["winner"]) == len(winners)
        places = iter(seen["accept"])
        for case, prob in zip(cases, seen["winner"], strict=True):
            for _ in case.drafted:
                prob *= next(places)
            assert next(places) == 1.0  # nothing is drafted at a row's last position
            yield prob

    patch.setattr(verify_module, "accepts", accepts)
    patch.setattr(verify_module, "exponential_sample", exponential_sample)
    return chances


def _patch_sample(patch, cases, distributions):
    """Replaces sampling with shared noise, which decides the draft's tokens and the target's."""
    targets = torch.tensor([token_id for case in cases for token_id in case.choices])
    seen = {}

    def sample(logits, batch):
        seen["distributions"] = target_probs(logits, batch).tolist()
        return Sampled(targets.clone())

    def chances():
        rows = iter(seen["distributions"])
        joints = {}
        for case in cases:
            prob = 1.0
            for path, drafted, target in zip(
                _paths(case), case.drafted, case.choices, strict=False
            ):
                distribution = next(rows)
                if path not in joints:
                    joints[path] = joint_distribution(distribution, distributions.at(path)[1])
                prob *= joints[path][target][drafted]
            yield prob * next(rows)[case.choices[-1]]

    patch.setattr(verify_module, "sample", sample)
    return chances
