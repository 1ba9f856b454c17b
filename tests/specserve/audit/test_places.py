"""Which place of a drafted block a token had, and what is kept of it."""

import random
from math import log

import pytest

from specserve.api.events import CompletedSample
from specserve.audit.long_answers import ScoredAnswer, logprob_check
from specserve.audit.places import placed_tokens, places_of
from specserve.audit.report import Status
from specserve.audit.token_distribution import SamplingCase
from specserve.types import FinishReason, Logprobs, TokenOrigin

PLAIN, DRAFTED, BONUS = TokenOrigin.PLAIN, TokenOrigin.DRAFTED, TokenOrigin.BONUS
ORIGINS = [PLAIN, DRAFTED, DRAFTED, BONUS, BONUS, PLAIN, DRAFTED]


def answer(*reported: float) -> ScoredAnswer:
    """Tokens 0, 1, ... of probability a half each, whose reported log probabilities are these."""

    def record(token_id: int, value: float) -> Logprobs:
        return Logprobs(token_id, value, 1, [token_id, 99], [value, log(0.25)])

    sample = CompletedSample(
        sample_index=0,
        text="",
        token_ids=list(range(len(reported))),
        origins=ORIGINS[: len(reported)],
        finish_reason=FinishReason.LENGTH,
        logprobs=[record(i, value) for i, value in enumerate(reported)],
    )
    return ScoredAnswer(sample, [record(i, log(0.5)) for i in range(len(reported))])


def test_a_place_follows_from_the_tokens_before():
    assert places_of(ORIGINS) == [0, 1, 2, 3, 1, 0, 1]


def test_tokens_without_drafts_are_left_out():
    tokens = placed_tokens(answer(*[log(0.5)] * 7), SamplingCase("w"), 1e-3, random.Random(0))
    assert [token.place for token in tokens] == [1, 2, 3, 1, 1]
    assert [token.is_drafted for token in tokens] == [True, True, False, False, True]
    assert all(0 <= token.percentile < 0.5 for token in tokens)
    assert tokens[0].doubt == pytest.approx(0.5)


def test_reported_log_probabilities_may_differ_by_rounding_alone():
    near, wrong = answer(*[log(0.5) + 1e-6] * 7), answer(*[log(0.5)] * 6, log(0.4))
    options = {"method": "rejection", "rounding": 1e-3, "allowed": 0.0}
    assert logprob_check([near], **options).status is Status.PASSED
    check = logprob_check([near, wrong], **options)
    assert (check.num_different, check.num_tokens, check.status) == (1, 14, Status.FAILED)
    assert check.largest == pytest.approx(log(0.5 / 0.4))
    assert logprob_check([near, wrong], **{**options, "allowed": 0.1}).status is Status.PASSED
