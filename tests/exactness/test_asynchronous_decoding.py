"""Under coupled and greedy verification nothing that draft processes do or suffer changes a token.

Seeded requests of every kind, against plain decoding of the same ones: blocks come early, late and
never, links lose, double, reorder and damage frames, drafts die and come back, others take over.
"""

import random
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from specserve.types import Request
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import Models, RandomBudget, make_models, requests, run
from tests.reliability.scale import is_long
from tests.specserve.transport.link.loopback import Script
from tests.target_node.in_process import InProcessTarget
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

MODEL_LEN = 90
MANY = 500 if is_long() else 200  # requests
DRAFTERS = ["dspark vanilla", "dflash anchor first", "language model", "eagle3", "ngram"]
QUICK_OR_SLOW = [
    name
    if name in ("dspark vanilla", "language model")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in DRAFTERS
]
QUICK = Drafting(draft_batch=8, fan_out=16, pace=(6,))
USUAL = Drafting(draft_batch=8, fan_out=8, pace=(0, 1, 2, 3))
FAULTS = Script(
    loss=0.05, duplication=0.1, reordering=0.1, bit_flips=0.05, garbage=0.1, stale=0.1, capacity=6
)
EVERYTHING = replace(USUAL, num_drafts=2, script=FAULTS, control_loss=0.03, death=0.01)
SHORT = {"num_blocks": 30, "block_size": 3}

WORLDS = {
    "prepared in time": (QUICK, {"miss": Miss.SKIP}),
    "often late": (replace(USUAL, pace=(0, 0, 1, 2)), {"miss": Miss.SKIP}),
    "one branch a draft batch": (replace(USUAL, draft_batch=1, pace=(3, 9)), {"miss": Miss.SKIP}),
    "misses look up": (USUAL, {"miss": Miss.NGRAM}),
    "misses wait": (USUAL, {"miss": Miss.DRAFT_NOW}),
    "faulty links": (replace(QUICK, script=FAULTS, control_loss=0.1), {"miss": Miss.SKIP}),
    "slow links": (replace(QUICK, script=Script(delay=1)), {"miss": Miss.SKIP}),
    "flapping drafts": (replace(QUICK, num_drafts=3, death=0.1), {"miss": Miss.SKIP}),
    "any mode": (QUICK, {"miss": Miss.SKIP, "auto": True}),
    "any mode, any fault": (EVERYTHING, {"auto": True}),
    "blocks run out": (USUAL, SHORT),
    "little room for drafts": (QUICK, {"max_batch_tokens": 9, "miss": Miss.SKIP}),
    "no prefix cache": (USUAL, {"prefix_cache": False}),
    "everything is verified": (QUICK, {"budget": ThresholdPolicy, "miss": Miss.SKIP}),
    "contexts grow slowly": (replace(QUICK, max_extension=3), {"miss": Miss.SKIP}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def plainly(models: Models, count: int) -> dict:
    target = InProcessTarget(models.model(), max_model_len=MODEL_LEN)
    return run(target, requests(500)[:count], at_once=8)


@pytest.fixture(scope="module")
def plain(models) -> dict:
    return plainly(models, 60)


@pytest.fixture(scope="module")
def many_plain(models) -> dict:
    return plainly(models, MANY)


def with_any_length(batch: list[Request]) -> list[Request]:
    """Some want few drafted tokens or none, which may not be seen in what they get."""
    source = random.Random(7)
    lengths = [None, None, None, None, 0, 1, 2, 5]
    return [msgspec.structs.replace(r, max_verify_len=source.choice(lengths)) for r in batch]


def drafted(
    models: Models, name: str, count: int, drafting: Drafting, **settings
) -> tuple[dict, InProcessPair]:
    settings = {"max_model_len": MODEL_LEN, "budget": partial(RandomBudget, 3)} | settings
    make = partial(models.drafter, name)
    with InProcessPair(models.model(), make, drafting, **settings) as pair:
        return run(pair, with_any_length(requests(500)[:count]), at_once=6), pair


def assert_equal(found: dict, plain: dict) -> None:
    names = set(found["ends"])
    assert {k: v for k, v in plain["ends"].items() if k in names} == found["ends"]
    assert {k: v for k, v in plain["samples"].items() if k[0] in names} == found["samples"]
    assert {k: v for k, v in plain["prompts"].items() if k in names} == found["prompts"]


def assert_clean(pair: InProcessPair) -> None:
    assert pair.pool.num_free == pair.pool.num_blocks
    assert len(pair.asynchronous._streams) == 0


@pytest.mark.parametrize("name", QUICK_OR_SLOW)
def test_a_few_requests_are_those_of_plain_decoding(models, plain, name):
    found, pair = drafted(models, name, 15, USUAL)
    assert_equal(found, plain)
    assert_clean(pair)
    assert pair.asynchronous.status().num_hits > (0 if name == "ngram" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_request_is_that_of_plain_decoding_whatever_happens(models, many_plain, name):
    found, pair = drafted(models, name, MANY, EVERYTHING)
    assert_equal(found, many_plain)
    assert_clean(pair)
    counters = [peer.end.counters for peer in pair.links._peers]
    assert sum(draft.num_lives for draft in pair.drafts) > MANY / 50
    assert sum(counter.num_malformed for counter in counters) > MANY / 25
    assert sum(counter.num_stale for counter in counters) > MANY / 25
    if name != "ngram":
        assert pair.asynchronous.status().num_hits > MANY / 2
        assert pair.hit_rate > 0.08


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark vanilla", "language model"])
@pytest.mark.parametrize("world", WORLDS)
def test_equal_in_every_world(models, plain, name, world):
    drafting, settings = WORLDS[world]
    found, pair = drafted(models, name, 60, drafting, **settings)
    assert_equal(found, plain)
    assert_clean(pair)
    # Over slow links every draft batch is a round late.
    assert (pair.asynchronous.status().num_hits > 10) is (world != "slow links")
    assert (pair.scheduler.num_preemptions > 5) is (world == "blocks run out")
    assert pair.chooser is None or pair.chooser.num_switches > 15


@pytest.mark.parametrize("name", ["language model", "the target itself"])
def test_equal_where_chains_go_on_by_what_they_drafted(models, plain, name):
    widths: set[int] = set()

    def make():
        drafter = models.drafter(name)
        drafter.probs_confidence = lambda slot, logits: logits.softmax(-1).amax(-1) ** 0.25
        draft = drafter.draft

        def recorded(batch, method):
            drawn = draft(batch, method)
            widths.add(drawn.token_ids.shape[1])
            return drawn

        drafter.draft = recorded
        return drafter

    drafting = replace(QUICK, usual_tokens=2)
    settings = {"max_model_len": MODEL_LEN, "miss": Miss.SKIP, "budget": ThresholdPolicy}
    with InProcessPair(models.model(), make, drafting, **settings) as pair:
        found = run(pair, with_any_length(requests(500)[:30]), at_once=6)
    assert_equal(found, plain)
    assert_clean(pair)
    assert {2, 3} <= widths  # the usual, and more
    assert pair.asynchronous.status().num_hits > 10


@pytest.mark.slow
def test_most_rows_find_a_block_that_was_prepared_in_time(models, plain):
    """Where shared noise foretells nearly everything; else the other tests might test little."""
    found, pair = drafted(
        models, "the target itself", 60, QUICK, miss=Miss.SKIP, budget=ThresholdPolicy
    )
    assert_equal(found, plain)
    assert pair.hit_rate > 0.6
