"""Answers in a form: every complete one is valid, and a draft changes no token of any of them.

Requests with and without grammars share batches; drafters beside the target and in processes of
their own know the grammar or not.
"""

from functools import partial

import msgspec
import pytest

from specserve.sampling.verification.method import VerificationMethod
from specserve.types import FinishReason, Grammar, Terminal
from target_node.speculation.miss_policy import Miss
from tests.exactness.grammars import compiler, forced_calls, is_valid, structured, text_of
from tests.exactness.speculative import Models, RandomBudget, make_models, run
from tests.target_node.in_process import InProcessTarget
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

REQUESTS = structured(20)
SLOW = pytest.mark.slow
GRAMMARS = {request.request_id: request.grammar for request in REQUESTS}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(models) -> dict:
    target = InProcessTarget(models.model(), max_model_len=90, grammars=compiler())
    return run(target, REQUESTS, at_once=1)


def valid(found: dict) -> list[Grammar]:
    """The forms of complete answers, all of which have to be valid."""
    forms = []
    for (name, _), (token_ids, _, reasons) in found["samples"].items():
        if (grammar := GRAMMARS[name]) is not None and reasons == [FinishReason.STOP]:
            assert is_valid(text_of(token_ids), grammar), (text_of(token_ids), grammar)
            forms.append(grammar)
    return forms


def test_all_that_is_complete_is_valid(plain):
    ends = {plain["ends"][name][0] for name, grammar in GRAMMARS.items() if grammar is not None}
    assert ends == {Terminal.FINISHED}
    assert len(valid(plain)) >= 8
    assert forced_calls() in valid(plain)


@pytest.mark.parametrize(
    "name",
    [
        "dspark vanilla",
        pytest.param("language model", marks=SLOW),
        pytest.param("eagle3", marks=SLOW),
        pytest.param("ngram", marks=SLOW),
    ],
)
def test_drafts_that_know_the_grammar_change_nothing(models, plain, name):
    target = InProcessTarget(
        models.model(),
        max_model_len=90,
        draft=models.drafter(name),
        budget=RandomBudget(3),
        grammars=compiler(),
    )
    assert run(target, REQUESTS, at_once=6) == plain
    assert sum(end.stats.num_accepted_tokens for end in target.ends.values()) > 10
    assert target.pool.num_free == target.pool.num_blocks


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        pytest.param({"miss": Miss.SKIP}, False, id="async, unknown to drafts"),
        pytest.param({"miss": Miss.SKIP}, True, id="async", marks=SLOW),
        pytest.param({"auto": True}, False, id="any mode, unknown to drafts", marks=SLOW),
        pytest.param({"auto": True}, True, id="any mode", marks=SLOW),
    ],
)
def test_nor_do_those_of_draft_processes(models, plain, settings, known):
    drafting = Drafting(draft_batch=8, fan_out=16, pace=(6,))
    pair = InProcessPair(
        models.model(),
        partial(models.drafter, "dspark vanilla"),
        drafting,
        max_model_len=90,
        grammars=compiler(),
        drafts_grammars=compiler() if known else None,
        **settings,
    )
    with pair:
        assert run(pair, REQUESTS, at_once=6) == plain


@pytest.mark.parametrize(
    "method",
    [
        VerificationMethod.FORESEEABLE,
        pytest.param(VerificationMethod.REJECTION, marks=SLOW),
    ],
)
def test_under_the_ratio_test_all_that_is_complete_is_valid(models, method):
    target = InProcessTarget(
        models.model(),
        max_model_len=90,
        draft=models.drafter("language model"),
        default_method=method,
        grammars=compiler(),
    )
    unseeded = [msgspec.structs.replace(request, seeded_by_user=False) for request in REQUESTS]
    assert len(valid(run(target, unseeded, at_once=6))) >= 8
    assert sum(end.stats.num_accepted_tokens for end in target.ends.values()) > 10
