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
            for num_tokens in (num_rows, 4 * num_rows):
                policy.verified(num_rows, num_tokens, verify_s)
            policy.spent(Miss.DRAFT_NOW, num_rows, wait_s)
        policy.answered(answered)
        policy.observe(None, 3, accepted)
        policy.observe(
            Miss.DRAFT_NOW, 3, accepted if accepted_after_wait is None else accepted_after_wait
        )
        if Miss.NGRAM in kinds:
            policy.observe(Miss.NGRAM, 3, accepted_lookup)
        if here is not None:
            policy.observe(Miss.DRAFT_HERE, 3, here[0])
            for num_rows in range(1, 17):
                policy.spent(Miss.DRAFT_HERE, num_rows, here[1])
    return policy


def usual(policy: MissPolicy, *, num_missed: int, num_hits: int, can_wait: bool = True) -> Miss:
    """What most of many misses do, where so many rows go on missing whatever is done."""
    for turn in range(400):
        is_hit = turn % (num_missed + num_hits) >= num_missed
        for before in (None, *Miss):
            policy.followed(before, is_hit=is_hit)
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
    assert 20 <= chosen[Miss.DRAFT_NOW] <= 60
    for _ in range(400):
        policy.spent(Miss.DRAFT_NOW, 1, 0.0001)
    assert usual(policy, num_missed=1, num_hits=4) is Miss.DRAFT_NOW


def test_what_leads_to_hits_is_worth_more_than_its_own_round():
    """Rows of one token leave the drafts no time: nothing is there for the next ones either."""
    figures = {"verify_s": 0.006, "wait_s": 0.1, "accepted": 2.5, "accepted_lookup": 0.0}
    for hits_after_draft, best in ((0.9, Miss.DRAFT_HERE), (0.0, Miss.SKIP)):
        policy = measured(**figures, here=(0.6, 0.005))
        for _ in range(400):
            policy.followed(None, is_hit=True)
            policy.followed(Miss.DRAFT_HERE, is_hit=hits_after_draft > 0)
            for kind in (Miss.SKIP, Miss.NGRAM, Miss.DRAFT_NOW):
                policy.followed(kind, is_hit=False)
        for _ in range(3):
            policy.followed(None, is_hit=False)
        loads = {"num_missed": 1, "num_hits": 0, "can_wait": True}
        chosen = Counter(policy.choose(**loads) for _ in range(256))
        assert chosen.most_common(1)[0][0] is best


def test_what_a_first_use_costs_is_forgotten():
    """Contexts that were not asked for long catch up in it."""
    figures = {"verify_s": 0.006, "wait_s": 0.1, "accepted": 2.0, "accepted_lookup": 0.0}
    for is_first, best in ((True, Miss.DRAFT_HERE), (False, Miss.SKIP)):
        policy = measured(**figures, here=(2.0, 0.003))
        for _ in range(100):
            policy.spent(Miss.DRAFT_HERE, 1, 0.05, is_first=is_first)
        assert usual(policy, num_missed=1, num_hits=0) is best


def test_each_fall_back_is_tried_in_runs():
    policy = measured(verify_s=0.01, wait_s=0.1, accepted=1.0, accepted_lookup=0.0)
    loads = {"num_missed": 1, "num_hits": 0, "can_wait": True}
    chosen = [policy.choose(**loads) for _ in range(640)][64:]
    tried = [place for place, miss in enumerate(chosen) if miss is Miss.DRAFT_NOW]
    runs = sum(place - 1 not in tried for place in tried)
    assert len(tried) >= 3 * runs


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
        policy.verified(1, 1, 0.03)
        chosen.append(policy.choose(num_missed=1, num_hits=0, can_wait=True))
        accepted, cost_s = brings[chosen[-1]]
        policy.spent(chosen[-1], 1, cost_s)
        policy.observe(chosen[-1], 3, accepted)
    assert Counter(chosen[-60:])[Miss.DRAFT_NOW] > 45
    assert set(chosen[:18]) == set(brings)


def test_a_draft_that_never_answers_is_not_tried_for_ever():
    policy = MissPolicy(kinds=())
    chosen: list[Miss] = []
    for _ in range(200):
        policy.verified(1, 1, 0.03)
        chosen.append(policy.choose(num_missed=1, num_hits=0, can_wait=True))
        if chosen[-1] is Miss.DRAFT_NOW:
            policy.spent(Miss.DRAFT_NOW, 1, 0.05)
            policy.answered(0.0)
    assert Counter(chosen[-100:])[Miss.SKIP] > 90


def waiting_or_not(verify_s, *, verify_len: int = 3) -> MissPolicy:
    """Four rows, whose blocks make 1.5 tokens more and come within 5 ms; `verify_s` by tokens."""
    policy = MissPolicy(kinds=())
    for _ in range(200):
        for num_tokens in (4, 9, 14, 19):
            policy.verified(4, num_tokens, verify_s(num_tokens))
        policy.spent(Miss.DRAFT_NOW, 4, 0.005)
        policy.answered(1.0)
        policy.observe(None, verify_len, 1.5)
        policy.observe(Miss.DRAFT_NOW, verify_len, 1.5)
    return policy


def test_where_every_token_takes_time_few_are_verified_rather_than_many_waited_for():
    """The mean round takes the same, and the wait as well."""
    steep = waiting_or_not(lambda n: 0.003 + 0.00055 * n)
    flat = waiting_or_not(lambda n: 0.003 + 0.00055 * 11.5)
    assert usual(steep, num_missed=4, num_hits=0) is Miss.SKIP
    assert usual(flat, num_missed=4, num_hits=0) is Miss.DRAFT_NOW


def test_a_block_is_as_dear_as_what_is_verified_of_it():
    few = waiting_or_not(lambda n: 0.006 + 0.0003 * n, verify_len=2)
    many = waiting_or_not(lambda n: 0.006 + 0.0003 * n, verify_len=6)
    assert usual(many, num_missed=4, num_hits=0) is Miss.SKIP
    assert usual(few, num_missed=4, num_hits=0) is Miss.DRAFT_NOW


def test_a_wait_is_worth_more_in_a_round_that_prompts_make_long():
    policy = waiting_or_not(lambda n: 0.003 + 0.00055 * n)
    for _ in range(200):
        for num_tokens in (100, 260):
            policy.verified(4, num_tokens, 0.00055 * num_tokens, num_besides=num_tokens - 4)
    chosen = Counter(
        policy.choose(num_missed=4, num_hits=0, can_wait=True, num_besides=200) for _ in range(256)
    )
    assert chosen.most_common(1)[0][0] is Miss.DRAFT_NOW
    assert usual(policy, num_missed=4, num_hits=0) is Miss.SKIP  # what prompts take is kept apart


@pytest.mark.parametrize("num_hits", [20, 140, 5000])
def test_hits_without_end_do_not_hide_what_is_best_after_them(num_hits):
    """The draft dies between two requests: no hit was ever followed by a miss."""
    policy = measured(
        verify_s=0.005, wait_s=1.0, accepted=3.0, accepted_lookup=0.0, here=(2.0, 0.002)
    )
    for _ in range(num_hits):
        policy.followed(None, is_hit=True)
    chosen: Counter[Miss] = Counter()
    for _ in range(512):
        miss = policy.choose(num_missed=1, num_hits=0, can_wait=False)
        chosen[miss] += 1
        policy.followed(miss, is_hit=False)
    assert chosen[Miss.DRAFT_HERE] > 400
