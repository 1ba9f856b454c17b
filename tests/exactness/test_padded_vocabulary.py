"""Tokens that only pad a vocabulary are never answered, whoever drafts and however it is verified.

The models have 24 rows for 16 tokens, and at temperature 100 all rows are about as likely: a
sampler, a method or a draft that took the padding for tokens would show it in most answers.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from specserve.drafters.ngram import NgramDrafter
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import RoundEvents, Terminal
from target_node.planning.policies import ThresholdPolicy
from tests.exactness.engine_distribution import Models, make_models
from tests.specserve.models.checkpoints import load, write_tokenizer
from tests.target_node.in_process import InProcessTarget, request
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

NUM_KNOWN = 16
PROMPT = [3, 9, 4, 3, 9, 4, 3]
LOCAL = ["dspark", "language model", "the target itself", "ngram", "padding"]
CASES = [(name, method) for name in LOCAL for method in VerificationMethod]
HOT = {"temperature": 100.0, "max_tokens": 40, "ignore_eos": True}


class Reciting(NgramDrafter):
    """Drafts one padded token after the other, with a distribution that says so."""

    def draft(self, batch, method):
        drawn = super().draft(batch, method)
        padded = torch.full_like(drawn.token_ids, NUM_KNOWN + 3)
        draft_probs = drawn.draft_probs
        if draft_probs is not None:
            draft_probs = replace(
                draft_probs, ids=torch.where(draft_probs.probs > 0, NUM_KNOWN + 3, draft_probs.ids)
            )
        return replace(drawn, token_ids=padded, draft_probs=draft_probs)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    models = make_models(tmp_path_factory.mktemp("models"))
    folder = write_tokenizer(models.weights.folder, NUM_KNOWN)
    recite = {"padding": partial(Reciting, gamma=3, shortest=1)}
    return replace(models, model=load(folder), drafters=models.drafters | recite)


def answers(target: InProcessTarget) -> list[list[int]]:
    """Of many requests, of all that is emitted and whatever logprobs name along."""
    for place in range(12):
        fields = HOT | [{}, {"logprobs": 8}, {"min_p": 0.01}, {"presence_penalty": 1.0}][place % 4]
        seeded = {"request_seeded_by_user": place % 3 == 0}
        target.submit(request(f"r{place}", PROMPT, seed=place, n=2, **fields, **seeded))
    target.submit(request("cold", PROMPT, temperature=0.0, max_tokens=40, ignore_eos=True))
    target.run_until_idle()
    assert all(end.terminal is Terminal.FINISHED for end in target.ends.values())
    deltas = [
        delta
        for message in target.control.sent
        if isinstance(message, RoundEvents)
        for delta in message.deltas
    ]
    named = [entry.top_ids for delta in deltas for entry in delta.logprobs or ()]
    return [*target.tokens.values(), *named]


def is_known(found: list[list[int]]) -> bool:
    return len(found) > 25 and max(map(max, found)) < NUM_KNOWN


@pytest.mark.parametrize(("name", "method"), [(None, VerificationMethod.COUPLED), *CASES])
def test_padding_is_never_answered(models, name, method):
    target = InProcessTarget(
        models.model,
        draft=None if name is None else models.drafters[name](),
        default_method=method,
        budget=ThresholdPolicy(0.0),
        max_batch_rows=32,
        max_batch_tokens=256,
    )
    assert is_known(answers(target))
    if name is not None:
        assert sum(end.stats.num_drafted_tokens for end in target.ends.values()) > 100


@pytest.mark.parametrize("method", list(VerificationMethod))
@pytest.mark.parametrize("name", ["language model", "dspark"])
def test_padding_is_never_answered_where_drafts_are_pushed(models, name, method):
    drafting = Drafting(draft_batch=64, fan_out=4, pace=(0, 4, 12), num_drafts=2)
    with InProcessPair(
        models.model,
        models.drafters[name],
        drafting,
        auto=True,
        budget=partial(ThresholdPolicy, 0.0),
        default_method=method,
        max_batch_rows=32,
        max_batch_tokens=256,
    ) as pair:
        assert is_known(answers(pair))
        assert pair.asynchronous.status().num_hits > 5


REFUSED = [
    ({"prompt": [3, NUM_KNOWN]}, "token_ids"),
    ({"stop_token_ids": (NUM_KNOWN,)}, "stop_token_ids"),
    ({"logit_bias": {NUM_KNOWN + 1: 5.0}}, "logit_bias"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_padding_is_refused_in_requests(models, fields, named):
    target = InProcessTarget(models.model)
    target.submit(request("r", **{"prompt": PROMPT} | fields))
    target.run_until_idle()
    end = target.ends["r"]
    assert end.terminal is Terminal.REJECTED
    assert end.error.startswith(named)
    assert f"the vocabulary of {NUM_KNOWN} tokens" in end.error
