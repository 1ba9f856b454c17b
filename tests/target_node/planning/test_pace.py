"""Rows that are behind the speed they ask for: how much they count, where, and since when."""

import hashlib
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from specserve.sampling.verification.admission import PlanningSnapshot, RoundFacts
from specserve.types import Request, SamplingParams, Speculation
from target_node.planning import pace
from target_node.planning.pace import weight_of, weights_of
from target_node.planning.policies import EXACT_FOR, ThresholdPolicy, policy_named
from target_node.sampler import SampledRow
from target_node.sequence import Sequence
from tests.exactness.speculative import Models, make_models
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import InProcessTarget, request
from tests.target_node.planning.test_policies import round_of
from tests.target_node.speculation.test_speculation import Round


def sequence(target: float | None, *, num_tokens: int, since_s: float | None = 100.0) -> Sequence:
    """A sample that has made so many tokens since then."""
    asked = Request(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(),
        seed=1,
        min_tokens_per_s=target,
    )
    found = Sequence(asked, sample_index=0, arrival=0)
    found.token_ids += [3] * num_tokens
    found.decodes_since_s = since_s
    return found


@pytest.mark.parametrize(
    ("target", "num_tokens", "seconds", "weight"),
    [
        (None, 1, 100.0, 1.0),
        (10.0, 20, 2.0, 1.0),  # just as fast
        (10.0, 40, 2.0, 1.0),  # ahead
        (10.0, 16, 2.0, 1.25),
        (10.0, 8, 2.0, 2.5),
        (10.0, 5, 2.0, 4.0),
        (10.0, 1, 2.0, 4.0),  # further behind counts no more
        (10.0, 1, 0.0, 1.0),  # no time has passed
    ],
)
def test_the_weight_is_target_over_pace_within_one_and_four(target, num_tokens, seconds, weight):
    found = sequence(target, num_tokens=num_tokens)
    assert weight_of(found, 100.0 + seconds) == pytest.approx(weight)


def test_who_has_made_no_token_counts_once():
    assert weight_of(sequence(10.0, num_tokens=0, since_s=None), 1e6) == 1.0


def test_only_who_is_behind_is_written_down(monkeypatch):
    monkeypatch.setattr(pace, "time", ScriptedTime())  # it is 50 s
    behind, ahead = sequence(10.0, num_tokens=4, since_s=49.0), sequence(0.1, num_tokens=9)
    ahead.decodes_since_s = 49.0
    assert weights_of([behind, ahead, sequence(None, num_tokens=1)]) == {behind: 2.5}


# --- what policies make of it ----------------------------------------------------------------


class Line:
    def seconds(self, num_tokens):
        return 1.0 + 0.25 * num_tokens


class Step:
    """Forwards of up to four tokens take one second, longer ones half as long again."""

    def seconds(self, num_tokens):
        return np.where(num_tokens <= 4, 1.0, 1.5)


def test_a_row_that_is_behind_pays_less_for_its_tokens():
    facts = RoundFacts(PlanningSnapshot(token_price=0.5))
    rows, policy = [[0.6, 0.4, 0.2], [0.6, 0.4, 0.2]], policy_named("price")
    assert policy.allocate(rows, 9, facts) == [1, 1]
    behind = replace(facts, weights=[1.0, 2.0])
    assert policy.allocate(rows, 9, behind) == [1, 2]
    assert policy.allocate(rows, 9, replace(facts, weights=[1.0, 4.0])) == [1, 3]
    assert policy.allocate(rows, 2, behind) == [0, 2]  # 1.2 and .8 against .6


def test_a_row_that_is_behind_is_taken_earlier_and_further():
    facts = RoundFacts(PlanningSnapshot(costs=Line()), num_tokens=2)
    rows, policy = [[0.9, 0.5, 0.1], [0.4]], policy_named("causal")
    assert policy.allocate(rows, 9, facts) == [2, 0]
    # 2 / 1.5, 2.9 / 1.75, 3.7 / 2, 4.2 / 2.25 rise; 4.3 / 2.5 does not.
    behind = replace(facts, weights=[1.0, 2.0])
    assert policy.allocate(rows, 9, behind) == [2, 1]
    assert policy.allocate(rows, 2, behind) == [1, 1]


def test_the_barriers_places_go_to_the_row_that_is_behind():
    """Two places of Step are free: three tokens more would have to pay for half a second."""
    facts = RoundFacts(PlanningSnapshot(costs=Step()), num_tokens=2, before=[[0.4], [0.4, 0.3]])
    rows, policy = [[0.5], [0.5, 0.45]], policy_named("barrier")
    assert policy.allocate(rows, 9, facts) == [1, 1]
    assert policy.allocate(rows, 9, replace(facts, weights=[1.0, 4.0])) == [0, 2]


def test_the_barrier_has_more_places_where_those_of_a_row_that_is_behind_pay():
    """No place is free: 2 / 1 against 2.5 / 1.5, and against (2 + .8 + .4 + .2) / 1.5."""
    facts = RoundFacts(PlanningSnapshot(costs=Step()), num_tokens=4, before=[[0.2], [0.2, 0.1]])
    rows, policy = [[0.9], [0.9, 0.9]], policy_named("barrier")
    assert policy.allocate(rows, 9, facts) == [0, 0]
    assert policy.allocate(rows, 9, replace(facts, weights=[1.0, 4.0])) == [1, 2]


def test_a_search_over_current_confidences_counts_weights_too():
    facts = RoundFacts(PlanningSnapshot(token_price=0.5, costs=Step()), num_tokens=4)
    policy = policy_named("global")
    assert policy.allocate([[0.2], [0.2, 0.1]], 9, facts) == [0, 0]
    behind = replace(facts, weights=[1.0, 4.0])
    assert policy.allocate([[0.2], [0.2, 0.1]], 9, behind) == [1, 2]
    # Under the ratio test it is the price that is divided.
    by_ratio = replace(facts, weights=[2.0, 1.0], by_ratio=[True, True])
    assert policy.allocate([[0.3], [0.3]], 9, by_ratio) == [1, 0]


@pytest.mark.parametrize(("name", "least"), [("fixed", None), ("threshold", 0.5)])
def test_what_asks_for_no_price_knows_no_weights(name, least):
    rows, policy = [[0.6, 0.5, 0.2], [0.6, 0.5, 0.2]], policy_named(name, least)
    for capacity in (2, 3, 4, 9):
        behind = RoundFacts(weights=[1.0, 4.0])
        assert policy.allocate(rows, capacity, behind) == policy.allocate(rows, capacity)


# Of 500 rounds, before there were weights.
AS_BEFORE = "a787c601263e30752c1e801738fe28fe8f2694da692b804fca2c1f2c1cf95149"


def allocations(**changes) -> list[list[int]]:
    """Of every policy, over random rounds and jagged tables."""
    rng, policies = random.Random(5), [policy_named(name, 0.3) for name in EXACT_FOR]
    found = []
    for _ in range(500):
        survivals, capacity, facts = round_of(rng)
        facts = replace(facts, **{k: make(survivals) for k, make in changes.items()})
        found += [policy.allocate(survivals, capacity, facts) for policy in policies]
    return found


def test_where_nobody_asks_for_a_pace_allocations_are_those_of_before():
    found = allocations()
    assert hashlib.sha256(str(found).encode()).hexdigest() == AS_BEFORE
    assert found == allocations(weights=lambda survivals: [1.0] * len(survivals))


# --- since when it is known ------------------------------------------------------------------


class Listening(ThresholdPolicy):
    """Verifies all, and keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = []

    def allocate(self, survivals, capacity, facts):
        self.told.append(list(facts.weights))
        return super().allocate(survivals, capacity, facts)


@pytest.mark.parametrize(("is_asynchronous", "delay"), [(False, 1), (True, 2)])
def test_a_pace_is_known_one_round_later_or_two(monkeypatch, is_asynchronous, delay):
    """10 tokens a second are asked for, and one a second comes but for a round of 60."""
    time, policy = ScriptedTime(), Listening()
    monkeypatch.setattr(pace, "time", time)
    subject = Round(
        [5], places=3, spare=40, gamma=3, budget=policy, is_asynchronous=is_asynchronous
    )
    own = subject.rows[0].sequence
    own.request = msgspec.structs.replace(own.request, min_tokens_per_s=10.0)
    own.decodes_since_s = time.now_s
    for num_tokens in [1, 1, 1, 60, 1, 1]:
        subject.admission.begin(subject.rows)
        time.now_s += 0.5  # drafts are drawn
        admitted = subject.admission.admit(subject.rows, {own: Speculation((3, 3, 3))})
        time.now_s += 0.5  # ... and verified
        own.token_ids += [2] * num_tokens
        own.num_computed += num_tokens
        own.num_rounds += 1
        subject.admission.observe(admitted, [SampledRow(token_ids=[2] * num_tokens)])
        subject.end()
    # Before the first round no time had passed; with 64 tokens it is ahead.
    behind = [bool(weights) for weights in policy.told]
    assert behind == [0 < k < 3 + delay for k in range(6)]
    assert all(weights in ([], [4.0]) for weights in policy.told)


def test_a_row_that_was_not_there_counts_once(monkeypatch):
    """Asynchronous: what was written down before the last verification knows older rows alone."""
    time, policy = ScriptedTime(), Listening()
    monkeypatch.setattr(pace, "time", time)
    subject = Round([5, 5], places=6, spare=40, gamma=3, budget=policy, is_asynchronous=True)
    for row in subject.rows:
        own = row.sequence
        own.request = msgspec.structs.replace(own.request, min_tokens_per_s=10.0)
        own.decodes_since_s = time.now_s - 9
    for rows in (subject.rows[:1], subject.rows, subject.rows):
        subject.admission.begin(rows)
        subject.admission.admit(rows, {row.sequence: Speculation((3,)) for row in rows})
        subject.end()
    assert [sorted(weights) for weights in policy.told] == [[4.0], [1.0, 4.0], [4.0, 4.0]]


# --- in the loop -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def drafted(models: Models, target: float | None, budget) -> tuple[list[int], list[list[int]]]:
    """Of two equal rows, the first of which asks for a pace: drafted tokens that were verified
    until one of them had its whole answer, and the texts of both."""
    subject = InProcessTarget(
        models.model(),
        draft=models.drafter("the target itself"),
        budget=budget,
        max_batch_tokens=8 + 2,
        max_batch_rows=8,
        max_model_len=96,
    )
    subject.scheduler.max_batch_tokens = 4  # two rows, and two places that they compete for
    for name, asked in (("behind", target), ("twin", None)):
        own = {"request_seeded_by_user": True, "request_min_tokens_per_s": asked}
        subject.submit(request(name, [5, 6, 7], seed=3, max_tokens=40, ignore_eos=True, **own))
    subject.turn()
    sequences = list(subject.scheduler.running)
    while not subject.ends:
        subject.turn()
    counts = [each.num_drafted_tokens for each in sequences]
    subject.run_until_idle()
    return counts, list(subject.tokens.values())


@pytest.mark.parametrize("name", ["price", "causal", "barrier", "global"])
def test_a_row_that_is_behind_gets_more_than_its_twin(models, name):
    """No service of one core makes a million tokens a second."""
    counts, texts = drafted(models, 1e6, policy_named(name))
    assert counts[0] > 2 * counts[1]
    assert texts[0] == texts[1]  # which are the target's own


def test_where_nobody_asks_for_a_pace_twins_get_as_much_and_nothing_is_told(models):
    told = Listening()
    counts, texts = drafted(models, None, told)
    assert abs(counts[0] - counts[1]) <= 2
    assert told.told
    assert not any(told.told)
    ahead, same_texts = drafted(models, 1e-6, policy_named("price"))
    assert ahead == counts
    assert texts == same_texts
