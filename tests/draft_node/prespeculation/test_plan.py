import numpy as np
import pytest

from draft_node.prespeculation.fan_out import NO_RANK, HitCurves
from draft_node.prespeculation.outcomes import NO_TOKEN, OutcomeKind
from draft_node.prespeculation.plan import PendingBlock, Planner, pending_block
from draft_node.prespeculation.speculation_cache import DraftedBlock
from specserve.transport.link.messages import BlockKey
from tests.draft_node.prespeculation.rounds import Rounds


class NoFeatures:
    feature_size, gamma, stops_in_time = 0, 4, False


def row(block):
    return Rounds(NoFeatures()).row([7, 8, 9], block=block)


def block_of(token_ids, confidences=None):
    return DraftedBlock(1, BlockKey(1, 1, 2, 9), token_ids, confidences, None, 0)


def planner(fan_out=6, num_spare=4):
    return Planner(fan_out, num_spare, HitCurves(8))


def candidates(num_slots, num_ranks=8):
    return 100 * np.arange(num_slots)[:, None] + np.arange(num_ranks)


def test_every_prefix_of_our_own_block_is_an_outcome_and_what_follows_it_is_known():
    pending = pending_block(
        row([1, 2]), block_of((1, 2, 3, 4), (0.9, 0.8, 0.7, 0.6)), [0.5] * 4, 99
    )
    assert pending == PendingBlock((1, 2), (0.9, 0.8), 3, 3)
    assert pending.excluded_ids() == [1, 2, NO_TOKEN]


def test_after_the_last_slot_of_a_block_nothing_is_known():
    pending = pending_block(row([1, 2, 3, 4]), block_of((1, 2, 3, 4)), [0.5] * 4, 99)
    assert (pending.num_slots, pending.next_id) == (4, NO_TOKEN)
    assert pending.confidences == (0.5,) * 4
    assert pending.excluded_ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("theirs", "confidences", "num_slots", "next_id"),
    [
        ([5, 2], (0.1, 0.5), 1, 1),
        ([1, 5, 3], (0.9, 0.5, 0.5), 2, 2),
        ([1, 2, 3, 5], (0.9, 0.2, 0.7, 0.4), 4, 4),
        ([1, 2, 3, 4, 5], (0.9, 0.2, 0.7, 0.6, 0.5), 4, NO_TOKEN),
    ],
)
def test_a_foreign_block_is_known_as_far_as_ours_goes_along(
    theirs, confidences, num_slots, next_id
):
    pending = pending_block(row(theirs), block_of((1, 2, 3, 4), (0.9, 0.2, 0.7, 0.6)), [], 99)
    assert pending.confidences == pytest.approx(confidences)
    assert (pending.num_slots, pending.next_id, pending.is_ours) == (num_slots, next_id, False)
    assert pending.excluded_ids() == theirs[:num_slots]


def test_outcomes_beyond_the_models_context_are_left_out():
    pending = pending_block(row([1, 2]), block_of((1, 2, 3, 4)), [0.5] * 4, 2)
    assert (pending.num_slots, pending.next_id) == (2, NO_TOKEN)  # what is known follows both


def test_outcomes_come_in_order_of_probability_and_the_spare_ones_last():
    pending = PendingBlock((1, 2), (0.9, 0.3), 3, 3)
    plan = planner().plan(OutcomeKind.COUPLED, pending, candidates(3))
    assert plan.num_due == 6
    assert len(plan.values) == 10
    assert (np.diff(plan.values[:6]) <= 0).all()
    assert (np.diff(plan.values[6:]) <= 0).all()
    taken = [plan.take() for _ in range(10)]
    assert len(set(taken)) == 10
    assert not plan.is_due
    assert not plan.is_left
    for number, token_id in taken:
        assert token_id // 100 == number
    ranks = {number: [t % 100 for k, t in taken[:6] if k == number] for number in range(3)}
    assert all(row == list(range(len(row))) for row in ranks.values())


def test_the_order_does_not_depend_on_which_tokens_are_candidates():
    pending = PendingBlock((1, 2), (0.9, 0.3), 3, 3)
    first = planner().plan(OutcomeKind.FORESEEABLE, pending, candidates(3))
    shuffled = np.random.default_rng(0).permutation(candidates(3).ravel()).reshape(3, 8)
    second = planner().plan(OutcomeKind.FORESEEABLE, pending, shuffled)
    assert (first.num_accepted == second.num_accepted).all()
    assert (first.ranks == second.ranks).all()


def test_missing_candidates_are_never_taken():
    few = candidates(3)
    few[0, 1:] = few[1, :] = NO_TOKEN
    pending = PendingBlock((1, 2), (0.9, 0.3), 3, 3)
    plan = planner(fan_out=30).plan(OutcomeKind.GREEDY, pending, few)
    taken = [plan.take() for _ in range(len(plan.values))]
    assert len(taken) == 9
    assert all(token_id != NO_TOKEN for _, token_id in taken)


def test_ranks_are_those_of_the_candidates():
    plan = planner().plan(OutcomeKind.GREEDY, PendingBlock((), (), 1, 3), candidates(1))
    assert plan.rank_of(0, 5) == 5
    assert plan.rank_of(0, 77) == NO_RANK


def test_rates_that_were_asked_for_before_are_those_of_now():
    curves = HitCurves(4)
    before = curves.recovery_and_bonus(OutcomeKind.GREEDY)[0].copy()
    curves.observe(OutcomeKind.GREEDY, 3, is_bonus=True)
    assert (curves.recovery_and_bonus(OutcomeKind.GREEDY)[0] == before).all()
    curves.observe(OutcomeKind.GREEDY, 0, is_bonus=False)
    assert curves.recovery_and_bonus(OutcomeKind.GREEDY)[0][0] > before[0]
