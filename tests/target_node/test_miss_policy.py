"""What a missed row does follows measured figures, at every load by itself."""

from collections import Counter

import pytest

from target_node.miss_policy import Miss, MissPolicy


def measured(
    *,
    verify_s: float,
    wait_s: float,
    accepted: float,
    accepted_lookup: float,
    accepted_after_wait: float | None = None,
    answered: float = 1.0,
    here: tuple[float, float] | None = None,
    **options,
) -> MissPolicy:
    """A policy that has seen these figures for long."""
    kinds = options.pop("kinds", {Miss.NGRAM} if here is None else {Miss.NGRAM, Miss.DRAFT_HERE})
    policy = MissPolicy(kinds=kinds, **options)
    for _ in range(400):
        for num_rows in range(1, 17):
            policy.verified(num_rows, verify_s)
            policy.spent(Miss.DRAFT_NOW, num_rows, wait_s)
        policy.answered(answered)
        policy.observe(None, accepted)
        policy.observe(
            Miss.DRAFT_NOW, accepted if accepted_after_wait is None else accepted_after_wait
        )
        if Miss.NGRAM in kinds:
            policy.observe(Miss.NGRAM, accepted_lookup)
        if here is not None:
            policy.observe(Miss.DRAFT_HERE, here[0])
            for num_rows in range(1, 17):
                policy.spent(Miss.DRAFT_HERE, num_rows, here[1])
    return policy


def usual(policy: MissPolicy, *, num_missed: int, num_hits: int, can_wait: bool = True) -> Miss:
    """What most of many misses do."""
    loads = {"num_missed": num_missed, "num_hits": num_hits, "can_wait": can_wait}
    chosen = Counter(policy.choose(**loads) for _ in range(256))
    return chosen.most_common(1)[0][0]


def test_a_cheap_wait_is_worth_it_for_one_row_and_not_for_one_of_many():
    policy = measured(verify_s=0.03, wait_s=0.015, accepted=3.0, accepted_lookup=0.1)
    assert usual(policy, num_missed=1, num_hits=0) is Miss.DRAFT_NOW
    assert usual(policy, num_missed=1, num_hits=15) is not Miss.DRAFT_NOW
    assert usual(policy, num_missed=12, num_hits=4) is Miss.DRAFT_NOW


def test_nobody_waits_for_a_draft_that_is_not_there():
    policy = measured(verify_s=0.03, wait_s=0.001, accepted=3.0, accepted_lookup=0.0)
    chosen = {policy.choose(num_missed=1, num_hits=0, can_wait=False) for _ in range(256)}
    assert Miss.DRAFT_NOW not in chosen
    fixed = MissPolicy(fixed=Miss.DRAFT_NOW)
    assert fixed.choose(num_missed=1, num_hits=0, can_wait=False) is Miss.SKIP
    assert fixed.choose(num_missed=1, num_hits=0, can_wait=True) is Miss.DRAFT_NOW


def test_a_wait_that_costs_more_than_it_brings_is_not_made():
    policy = measured(verify_s=0.01, wait_s=0.05, accepted=2.0, accepted_lookup=0.0)
    assert usual(policy, num_missed=1, num_hits=0) is not Miss.DRAFT_NOW


def test_a_draft_beside_the_target_is_worth_its_time_or_not():
    figures = {"verify_s": 0.03, "wait_s": 0.02, "accepted": 1.5, "accepted_lookup": 0.1}
    cheap = measured(**figures, here=(1.3, 0.008))
    assert usual(cheap, num_missed=1, num_hits=0) is Miss.DRAFT_HERE
    assert usual(cheap, num_missed=1, num_hits=0, can_wait=False) is Miss.DRAFT_HERE
    dear = measured(**figures, here=(1.3, 0.05))
    assert usual(dear, num_missed=1, num_hits=0) is Miss.DRAFT_NOW
    assert usual(dear, num_missed=1, num_hits=15) is Miss.NGRAM


def test_a_wait_is_judged_by_what_waiting_brought():
    """Blocks that have to be there in time may be short ones, and would be for good."""
    figures = {"verify_s": 0.03, "wait_s": 0.02, "accepted_lookup": 0.1, "here": (1.7, 0.02)}
    short = measured(**figures, accepted=0.8, accepted_after_wait=2.5)
    assert usual(short, num_missed=1, num_hits=0) is Miss.DRAFT_NOW
    long = measured(**figures, accepted=2.5, accepted_after_wait=0.8)
    assert usual(long, num_missed=1, num_hits=0) is Miss.DRAFT_HERE


def test_what_a_fall_back_costs_is_kept_apart_by_load():
    policy = measured(verify_s=0.03, wait_s=0.1, accepted=1.5, accepted_lookup=0.1, here=(1.3, 0.0))
    for _ in range(400):
        policy.spent(Miss.DRAFT_HERE, 8, 0.2)
    assert usual(policy, num_missed=8, num_hits=0) is Miss.NGRAM
    assert usual(policy, num_missed=1, num_hits=0) is Miss.DRAFT_HERE


def test_the_rows_own_text_is_used_where_it_repeats():
    policy = measured(verify_s=0.03, wait_s=0.03, accepted=2.0, accepted_lookup=1.5)
    assert usual(policy, num_missed=2, num_hits=6) is Miss.NGRAM
    without = measured(verify_s=0.03, wait_s=0.03, accepted=2.0, accepted_lookup=1.5, kinds=set())
    assert Miss.NGRAM not in {
        without.choose(num_missed=2, num_hits=6, can_wait=True) for _ in range(256)
    }


def test_what_was_bad_once_is_tried_again_but_seldom():
    policy = measured(verify_s=0.01, wait_s=0.1, accepted=1.0, accepted_lookup=0.0)
    loads = {"num_missed": 1, "num_hits": 4, "can_wait": True}
    for _ in range(42):  # first tries of everything
        policy.choose(**loads)
    chosen = Counter(policy.choose(**loads) for _ in range(1280))
    assert 10 <= chosen[Miss.DRAFT_NOW] <= 30
    for _ in range(400):
        policy.spent(Miss.DRAFT_NOW, 1, 0.0001)
    assert usual(policy, num_missed=1, num_hits=4) is Miss.DRAFT_NOW


@pytest.mark.parametrize("miss", [Miss.SKIP, Miss.NGRAM])
def test_a_fixed_policy_is_always_the_same(miss):
    policy = MissPolicy(fixed=miss)
    chosen = {policy.choose(num_missed=1, num_hits=0, can_wait=True) for _ in range(256)}
    assert chosen == {miss}


def test_a_wait_that_is_seldom_answered_is_not_made():
    """The bound was too short, or a draft has stopped: waiting costs and brings nothing."""
    figures = {"verify_s": 0.03, "wait_s": 0.015, "accepted": 3.0, "accepted_lookup": 0.1}
    loads = {"num_missed": 1, "num_hits": 0}
    assert usual(measured(**figures, answered=1.0), **loads) is Miss.DRAFT_NOW
    assert usual(measured(**figures, answered=0.05), **loads) is not Miss.DRAFT_NOW


def test_the_first_to_look_good_is_not_the_best_for_good():
    """Waiting would bring more than drafting here, which nobody can know without having waited."""
    policy = MissPolicy(kinds={Miss.NGRAM, Miss.DRAFT_HERE})
    brings = {Miss.NGRAM: (0.2, 0.0), Miss.DRAFT_HERE: (1.8, 0.02), Miss.DRAFT_NOW: (2.6, 0.017)}
    chosen: list[Miss] = []
    for _ in range(120):
        policy.verified(1, 0.03)
        chosen.append(policy.choose(num_missed=1, num_hits=0, can_wait=True))
        accepted, cost_s = brings[chosen[-1]]
        policy.spent(chosen[-1], 1, cost_s)
        policy.observe(chosen[-1], accepted)
    assert Counter(chosen[-60:])[Miss.DRAFT_NOW] > 45
    assert set(chosen[:18]) == set(brings)


def test_a_draft_that_never_answers_is_not_tried_for_ever():
    policy = MissPolicy(kinds=())
    chosen: list[Miss] = []
    for _ in range(200):
        policy.verified(1, 0.03)
        chosen.append(policy.choose(num_missed=1, num_hits=0, can_wait=True))
        if chosen[-1] is Miss.DRAFT_NOW:
            policy.spent(Miss.DRAFT_NOW, 1, 0.05)
            policy.answered(0.0)
    assert Counter(chosen[-100:])[Miss.SKIP] > 90
