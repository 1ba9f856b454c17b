"""Verification policies: exact expected allocations, and what may not decide on a token."""

import random
from dataclasses import replace

import numpy as np
import pytest

from specserve.sampling.verification.admission import NOTHING, PlanningSnapshot, RoundFacts
from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.policies import EXACT_FOR, best_count, by_survival, policy_named
from tests.exactness.speculative import Stairs

BLIND = [name for name, methods in EXACT_FOR.items() if methods == frozenset(VerificationMethod)]


class TwoSteps:
    """A forward of up to eight tokens costs 1, a longer one a fifth more."""

    def seconds(self, num_tokens):
        return np.where(num_tokens <= 8, 1.0, 1.2)


SURE_THEN_NEVER = [[0.9, 0.0]] * 8
EIGHT_ROWS = RoundFacts(
    snapshot=PlanningSnapshot(costs=TwoSteps()), num_tokens=8, before=SURE_THEN_NEVER
)


def test_the_causal_policy_stops_where_the_first_token_loses():
    """8 tokens a step; the next one gives 8.9 in 1.2, and Algorithm 1 looks no further."""
    assert policy_named("causal").allocate(SURE_THEN_NEVER, 99, EIGHT_ROWS) == [0] * 8


@pytest.mark.parametrize("name", ["barrier", "global"])
def test_a_search_goes_over_the_step(name):
    """15.2 tokens in 1.2, which is 12.67 against 8."""
    assert policy_named(name).allocate(SURE_THEN_NEVER, 99, EIGHT_ROWS) == [1] * 8
    assert pytest.approx(12.67, abs=0.01) == (8 + 8 * 0.9) / 1.2


def test_the_causal_policy_goes_on_as_long_as_each_token_pays():
    class Line:
        def seconds(self, num_tokens):
            return 1.0 + 0.25 * num_tokens

    # (2 + a) / (1.5 + .25) > 2 / 1.5 where a > 1/3; and so on along the order of survivals.
    facts = RoundFacts(snapshot=PlanningSnapshot(costs=Line()), num_tokens=2)
    assert policy_named("causal").allocate([[0.9, 0.5, 0.1], [0.4]], 9, facts) == [2, 0]
    assert policy_named("causal").allocate([[0.9, 0.5, 0.1], [0.4]], 1, facts) == [1, 0]


@pytest.mark.parametrize("name", ["causal", "barrier", "global"])
def test_rows_that_are_not_drafted_for_make_their_tokens_too(name):
    """16 rows make 5 tokens a second; a drafted one costs as much time and brings .9 of a token."""

    class Proportional:
        def seconds(self, num_tokens):
            return 0.2 * np.asarray(num_tokens)

    snapshot, drafted = PlanningSnapshot(costs=Proportional()), [[0.9, 0.8], [0.9, 0.8]]
    facts = RoundFacts(snapshot, num_tokens=16, num_rows=16, before=drafted)
    assert policy_named(name).allocate(drafted, 99, facts) == [0, 0]
    alone = replace(facts, num_rows=0)  # as if two rows took what 16 take
    assert sum(policy_named(name).allocate(drafted, 99, alone)) > 0


def test_k_of_the_barrier_is_that_of_two_rounds_before_and_current_survivals_rank():
    costs = TwoSteps()
    facts = RoundFacts(PlanningSnapshot(costs=costs), num_tokens=6, before=[[0.9], [0.9, 0.8]])
    # Two places are free; a third costs a fifth of (2 + 1.8) and brings .8 of a token.
    assert policy_named("barrier").allocate([[0.3], [0.7, 0.6, 0.5]], 9, facts) == [0, 3]
    fewer = replace(facts, num_tokens=7)  # anchors are tokens of the forward
    assert policy_named("barrier").allocate([[0.3], [0.7, 0.6, 0.5]], 9, fewer) == [0, 3]
    none_before = replace(facts, before=[[0.0], [0.0, 0.0]])
    assert policy_named("barrier").allocate([[0.9], [0.9, 0.9]], 9, none_before) == [0, 0]


def test_k_does_not_count_anchors():
    """Two rows, and a step behind four tokens: two places, not four."""

    class Wall:
        def seconds(self, num_tokens):
            return np.where(num_tokens <= 4, 1.0, 100.0)

    facts = RoundFacts(PlanningSnapshot(costs=Wall()), num_tokens=2, before=[[0.5] * 4, [0.4] * 4])
    assert policy_named("barrier").allocate([[0.5] * 4, [0.4] * 4], 9, facts) == [2, 0]


def test_equal_places_go_by_position_and_then_by_row():
    places = by_survival([[0.5, 0.5], [0.5, 0.2]])
    order = list(zip(places.positions, places.rows, strict=True))
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_what_is_no_survival_ends_its_row():
    nan = float("nan")
    places = by_survival([[0.5, nan, 0.9], [0.0, 1.0], [7.0], []])
    assert places.survivals.tolist() == [1.0, 0.5]
    assert len(by_survival([]).rows) == len(by_survival([[], []]).rows) == 0


def test_a_search_takes_the_fewest_of_equals():
    assert best_count([[0.0, 0.0]], 1, 1, NOTHING) == 0
    assert best_count([[1.0, 0.0]], 1, 1, NOTHING) == 1


def test_other_rows_places_are_fixed_before_the_search_looks():
    """Of coupled rows alone; what rows under the ratio test get is not its business."""
    snapshot = PlanningSnapshot(token_price=0.5, costs=TwoSteps())
    facts = RoundFacts(snapshot, num_tokens=3, by_ratio=[True, False, True])
    found = policy_named("global").allocate([[0.6, 0.4], [0.9] * 9, [0.4]], 99, facts)
    assert (found[0], found[2]) == (1, 0)
    other = policy_named("global").allocate([[0.6, 0.4], [0.1] * 9, [0.4]], 99, facts)
    assert (other[0], other[2]) == (1, 0)


def falling(rng: random.Random, length: int, most: float = 1.0) -> list[float]:
    """Survivals, which may be equal; zero now and then."""
    found = []
    for _ in range(length):
        most *= rng.choice([1.0, 0.9, 0.6, 0.3, 0.0])
        found.append(most)
    return found


def round_of(rng: random.Random) -> tuple[list[list[float]], int, RoundFacts]:
    survivals = [falling(rng, rng.randint(0, 5)) for _ in range(rng.randint(1, 5))]
    facts = RoundFacts(
        PlanningSnapshot(rng.random() ** 2, Stairs(rng.randrange(10**6))),
        num_tokens=len(survivals) + rng.randint(0, 20),
        before=[falling(rng, rng.randint(0, 5)) for _ in survivals],
        by_ratio=[True] * len(survivals),
    )
    return survivals, rng.choice([3, 8, 99]), facts


def weighted(rng: random.Random, facts: RoundFacts) -> RoundFacts:
    """Some rows are behind what they ask for, by as much as counts and by more."""
    return replace(facts, weights=[rng.choice([1.0, 1.0, 1.3, 2.5, 4.0]) for _ in facts.before])


def decides_on_itself(name: str, rng: random.Random, *, is_weighted: bool = False) -> bool:
    """Whether what a token makes of its own row's survivals decides whether it is verified."""
    survivals, capacity, facts = round_of(rng)
    facts = weighted(rng, facts) if is_weighted else facts
    row = rng.randrange(len(survivals))
    if not survivals[row]:
        return False
    k = rng.randrange(len(survivals[row]))
    before = survivals[row][: k + 1]
    other = [*before, *falling(rng, len(survivals[row]) - k - 1, before[-1])]
    changed = [other if r == row else each for r, each in enumerate(survivals)]
    if name == "retrospective":
        facts = replace(facts, by_ratio=[False] * len(survivals))
    policy = "global" if name == "retrospective" else name

    def found(values: list[list[float]]) -> int:
        return min(k + 1, policy_named(policy, 0.4).allocate(values, capacity, facts)[row])

    return found(survivals) != found(changed)


@pytest.mark.parametrize("name", [*BLIND, "global"])
def test_no_token_decides_whether_it_is_verified(name):
    """x_k and all behind it change: whether position k is verified does not."""
    rng = random.Random(11)
    assert not any(decides_on_itself(name, rng) for _ in range(4000))


@pytest.mark.parametrize("name", [*BLIND, "global"])
def test_nor_does_it_where_rows_are_behind_what_they_ask_for(name):
    rng = random.Random(12)
    assert not any(decides_on_itself(name, rng, is_weighted=True) for _ in range(4000))


def test_a_search_over_current_confidences_would():
    for is_weighted in (False, True):
        rng = random.Random(11)
        found = [
            decides_on_itself("retrospective", rng, is_weighted=is_weighted) for _ in range(4000)
        ]
        assert sum(found) > 3


def test_policies_hand_out_no_more_places_than_there_are():
    rng = random.Random(3)
    for _ in range(1000):
        survivals, capacity, facts = round_of(rng)
        facts = weighted(rng, facts) if rng.random() < 0.5 else facts
        for name in EXACT_FOR:
            found = policy_named(name, 0.3).allocate(survivals, capacity, facts)
            assert sum(found) <= capacity
            assert all(n <= len(row) for n, row in zip(found, survivals, strict=True))
