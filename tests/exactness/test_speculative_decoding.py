"""Under coupled verification a draft cannot change a token: every drafter, any verify_len, any
sampling fields, against plain decoding of the same seeded requests.
"""

import msgspec
import pytest

from specserve.types import TokenOrigin
from target_node.planning.policies import PricePolicy
from tests.exactness.speculative import (
    DRAFTERS,
    QUICK_OR_SLOW,
    Models,
    MoodyPace,
    MoodyPrices,
    RandomBudget,
    confident,
    make_models,
    requests,
    run,
)
from tests.reliability.scale import is_long
from tests.target_node.in_process import InProcessTarget

MANY = 500 if is_long() else 200  # requests


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def alone(models: Models, count: int) -> dict:
    """Requests one after the other, without drafts."""
    target = InProcessTarget(models.model(), max_model_len=90)
    return run(target, requests(500)[:count], at_once=1)


@pytest.fixture(scope="module")
def plain(models) -> dict:
    return alone(models, 60)


@pytest.fixture(scope="module")
def many_plain(models) -> dict:
    return alone(models, MANY)


def drafted(models: Models, name: str, count: int, **settings) -> tuple[dict, InProcessTarget]:
    settings = {"max_model_len": 90, "budget": RandomBudget(3)} | settings
    target = InProcessTarget(models.model(), draft=models.drafter(name), **settings)
    return run(target, requests(500)[:count], at_once=6), target


def assert_equal(found: dict, plain: dict) -> None:
    names = set(found["ends"])
    assert {k: v for k, v in plain["ends"].items() if k in names} == found["ends"]
    assert {k: v for k, v in plain["samples"].items() if k[0] in names} == found["samples"]
    assert {k: v for k, v in plain["prompts"].items() if k in names} == found["prompts"]


@pytest.mark.parametrize("name", QUICK_OR_SLOW)
def test_a_few_requests_are_those_of_plain_decoding(models, plain, name):
    found, target = drafted(models, name, 40)
    assert_equal(found, plain)
    stats = [end.stats for end in target.ends.values()]
    assert sum(s.num_drafted_tokens for s in stats) > 100
    assert target.pool.num_free == target.pool.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_request_is_that_of_plain_decoding(models, many_plain, name):
    found, target = drafted(models, name, MANY)
    assert_equal(found, many_plain)
    stats = [end.stats for end in target.ends.values()]
    assert sum(s.num_accepted_tokens for s in stats) > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_blocks": 30, "block_size": 3}, id="blocks run out"),
        pytest.param({"max_batch_tokens": 9}, id="little room for drafts"),
        pytest.param({"prefix_cache": False}, id="no prefix cache"),
        pytest.param({"budget": None}, id="everything is verified"),
    ],
)
@pytest.mark.parametrize("name", ["dspark vanilla", "the target itself"])
def test_equal_when_resources_are_short(models, plain, name, settings):
    found, target = drafted(models, name, 60, **settings)
    assert_equal(found, plain)
    if "num_blocks" in settings:
        assert target.scheduler.num_preemptions > 5


CHAINS = ["language model", "the target itself", "eagle3"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark vanilla", *CHAINS])
def test_equal_whatever_tokens_and_passes_cost(models, plain, name):
    drafter = models.drafter(name)
    if name in CHAINS:
        drafter = confident(drafter)
    target = InProcessTarget(
        models.model(),
        draft=drafter,
        prices=MoodyPrices(4),
        pace=MoodyPace(4),
        may_pause=True,
        budget=PricePolicy(),
        max_model_len=90,
    )
    assert_equal(run(target, requests(500)[:60], at_once=6), plain)
    stats = [end.stats for end in target.ends.values()]
    num_blocks = sum(s.num_drafts for s in stats)
    drafted = sum(s.num_drafted_tokens for s in stats)
    assert num_blocks > 50
    assert num_blocks < drafted < drafter.gamma * num_blocks  # some of the blocks, some of each


def test_the_target_drafting_for_itself_is_nearly_always_right(models):
    target = InProcessTarget(models.model(), draft=models.drafter("the target itself"))
    # Penalties, bias and truncation included, which drafts know as well.
    found = run(target, requests(60, seed=5), at_once=4)
    stats = [end.stats for end in target.ends.values()]
    accepted = sum(s.num_accepted_tokens for s in stats)
    assert accepted / sum(s.num_drafted_tokens for s in stats) > 0.9
    rounds = sum(s.num_rounds for s in stats)
    assert rounds < 0.6 * sum(len(tokens) for tokens, *_ in found["samples"].values())


def test_origins_and_counts_tell_what_was_drafted(models):
    target = InProcessTarget(models.model(), draft=models.drafter("the target itself"))
    run(target, requests(12, seed=6), at_once=4)
    deltas = [d for m in target.control.sent for d in getattr(m, "deltas", [])]
    origins = [origin for delta in deltas for origin in delta.origins]
    stats = [end.stats for end in target.ends.values()]
    accepted = sum(s.num_accepted_tokens for s in stats)
    assert origins.count(TokenOrigin.DRAFTED) == accepted > 0
    assert sum(map(sum, (s.num_accepted_per_position for s in stats))) == accepted
    assert all(len(delta.token_ids) == len(delta.origins) for delta in deltas)
    assert sum(len(delta.token_ids) for delta in deltas) == sum(
        s.num_generated_tokens for s in stats
    )


def test_what_follows_a_refused_draft_is_told_from_what_follows_accepted_ones(models):
    target = InProcessTarget(models.model(), draft=models.drafter("dspark vanilla"))
    few = [msgspec.structs.replace(each, max_verify_len=1) for each in requests(24, seed=7)]
    run(target, few, at_once=4)
    deltas = [d for m in target.control.sent for d in getattr(m, "deltas", [])]
    stats = [end.stats for end in target.ends.values()]
    accepted = sum(s.num_accepted_tokens for s in stats)
    endings = [delta.origins[-1] for delta in deltas]
    verified = sum(s.num_drafted_tokens for s in stats)
    # Of one drafted token: refused, and the target's stands in its place; or it stands.
    assert endings.count(TokenOrigin.RECOVERY) == verified - accepted > 0
    bonus = [delta.origins for delta in deltas if delta.origins[-1] is TokenOrigin.BONUS]
    assert bonus == [[TokenOrigin.DRAFTED, TokenOrigin.BONUS]] * len(bonus)
    assert 0 < len(bonus) <= accepted
