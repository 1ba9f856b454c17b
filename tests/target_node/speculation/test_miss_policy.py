"""What missed rows do is what makes most tokens a second, at every load by itself."""

from statistics import mean

import pytest

import target_node.speculation.miss_policy
from target_node.speculation.miss_policy import Miss, MissPolicy
from tests.scripted_time import ScriptedTime
from tests.target_node.planning.simulated_lives import After, SimulatedLives

# As measured beside a target of 30M parameters on two cores, one row, and as with 100M.
SMALL_DRAWN = {
    None: After(3.05, 0.0054, 0.46),
    Miss.SKIP: After(1.0, 0.0038, 0.25),
    Miss.NGRAM: After(1.4, 0.0050, 0.25),
    Miss.LOCAL_DRAFT: After(2.98, 0.0079, 0.42),
    Miss.DRAFT_NOW: After(3.10, 0.0078, 0.48),
}
SMALL_GREEDY = {
    None: After(4.25, 0.0053, 0.67),
    Miss.SKIP: After(1.0, 0.0035, 0.27),
    Miss.NGRAM: After(2.0, 0.0050, 0.32),
    Miss.LOCAL_DRAFT: After(3.12, 0.0073, 0.56),
    Miss.DRAFT_NOW: After(3.75, 0.0070, 0.58),
}
LARGE = {
    None: After(3.3, 0.0140, 0.86),
    Miss.SKIP: After(1.0, 0.0110, 0.60),
    Miss.NGRAM: After(1.4, 0.0125, 0.60),
    Miss.LOCAL_DRAFT: After(3.1, 0.0165, 0.80),
    Miss.DRAFT_NOW: After(3.2, 0.0165, 0.85),
}
# Where every verified token takes its time, a row that missed had better wait for the next round.
FULL = {
    None: After(2.0, 0.0100, 0.80),
    Miss.SKIP: After(1.0, 0.0050, 0.75),
    Miss.NGRAM: After(1.1, 0.0070, 0.75),
    Miss.LOCAL_DRAFT: After(2.0, 0.0150, 0.75),
    Miss.DRAFT_NOW: After(2.0, 0.0150, 0.75),
}
LIVES = {"drawn": SMALL_DRAWN, "greedy": SMALL_GREEDY, "large": LARGE, "full": FULL}


def lives_of(life, seeds=range(8), **options):
    return [SimulatedLives(life, seed, **options) for seed in seeds]


def best_speed(life) -> float:
    speeds: list[float] = []
    for miss in Miss:
        lives = lives_of(life, misses=[miss])
        for each in lives:
            each.rounds(5000)
        speeds.append(mean(each.speed for each in lives))
    return max(speeds)


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_little_is_lost_against_the_best_fall_back(life):
    first, later = [], []
    for each in lives_of(LIVES[life]):
        each.rounds(600)
        first.append(each.speed)
        each.forget()
        each.rounds(5000)
        later.append(each.speed)
    best = best_speed(LIVES[life])
    assert mean(first) > 0.92 * best
    assert mean(later) > 0.965 * best


def test_what_leads_to_hits_is_worth_more_than_its_own_round():
    """Rows of one token leave the drafts no time: nothing is there for the next ones either."""
    own = {
        None: After(3.5, 0.006, 0.9),
        Miss.NGRAM: After(1, 0.006, 0),
        Miss.SKIP: After(1, 4e-3, 0),
    }
    dear = After(1.6, 0.011, 0.9)  # of its own, slower than SKIP
    life = own | {Miss.LOCAL_DRAFT: dear, Miss.DRAFT_NOW: dear}
    for each in lives_of(life, range(4)):
        each.rounds(1500)
        each.forget()
        each.rounds(1500)
        assert each.chosen[Miss.LOCAL_DRAFT] + each.chosen[Miss.DRAFT_NOW] > 1350


def test_nobody_waits_for_a_draft_that_is_not_there():
    (each,) = lives_of(SMALL_GREEDY, [0])
    each.drafts.num_drafts_attached = 0
    each.rounds(1000)
    assert each.chosen[Miss.DRAFT_NOW] == 0


def test_what_pays_beside_a_draft_process_is_another_matter_without_one():
    alone = SMALL_DRAWN | {Miss.LOCAL_DRAFT: After(2.98, 0.03, 0.0), None: After(3.05, 0.0054, 0.0)}
    for each in lives_of(SMALL_DRAWN | {Miss.DRAFT_NOW: After(1.5, 0.0078, 0.48)}, range(4)):
        each.rounds(1500)
        with_draft, each.life, each.drafts.num_drafts_attached = each.life, alone, 0
        each.rounds(300)
        each.forget()
        each.rounds(700)
        assert each.chosen[Miss.SKIP] + each.chosen[Miss.NGRAM] > 600
        each.life, each.drafts.num_drafts_attached = with_draft, 1
        each.forget()
        each.rounds(200)
        assert each.chosen[Miss.LOCAL_DRAFT] > 120  # at once: it is known from before


@pytest.mark.parametrize("miss", Miss)
def test_what_was_told_is_done_as_far_as_can_be(miss, monkeypatch):
    """And nobody waits again for a draft that has not answered, before a second has passed."""
    clock = ScriptedTime()
    monkeypatch.setattr(target_node.speculation.miss_policy, "time", clock)
    told, waits = MissPolicy(), miss is Miss.DRAFT_NOW
    told.tell(miss)
    for policy in (MissPolicy(miss), told):
        assert policy.choose() is miss
        for pause_s, becomes_heard in ((0.5, True), (1.5, False)):
            policy.waited(in_vain=True)
            assert policy.choose() is (Miss.SKIP if waits else miss)
            clock.now_s += pause_s
            if becomes_heard:
                policy.heard()
            assert policy.choose() is miss
        policy.waited(in_vain=False)
        assert policy.choose() is miss


def test_a_draft_that_never_answers_is_waited_for_seldom():
    """Each wait takes fifty milliseconds."""
    life = SMALL_DRAWN | {None: After(3.05, 0.0054, 0.0), Miss.DRAFT_NOW: After(1.0, 0.055, 0.0)}
    for miss in Miss:
        life[miss] = life[miss]._replace(hits=0.0)
    for each in lives_of(life, range(4)):
        waits: list[bool] = []
        waited = each.policy.waited
        each.policy.waited = lambda *, in_vain, waits=waits, waited=waited: (
            waits.append(in_vain),
            waited(in_vain=in_vain),
        )
        each.rounds(2000)
        assert waits == [True] * len(waits)
        assert len(waits) <= 2


def test_nor_is_one_that_answers_too_late():
    """What it sends comes, after the wait."""
    life = {None: After(3.05, 0.0054, 0.0)} | {
        miss: SMALL_DRAWN[miss]._replace(hits=0.0) for miss in Miss
    }
    life[Miss.DRAFT_NOW] = After(1.0, 0.055, 0.0)
    for each in lives_of(life, range(4)):
        num_waits, each.is_late = 0, True
        for _ in range(3000):
            before = each.seconds
            each.rounds(1)
            num_waits += each.seconds - before > 0.04
        assert 1 <= num_waits <= 12
