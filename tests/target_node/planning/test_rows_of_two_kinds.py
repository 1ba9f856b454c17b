"""Rows that are verified in different ways: each is held to what is usual of its own kind."""

import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.types import DraftTime
from tests.target_node.planning.test_row_chooser import GAMMA, Rounds


@pytest.mark.parametrize("greedy", [0, 1])
def test_a_row_is_drafted_for_by_its_own_kind_and_not_by_the_first_rows(greedy):
    """All of the greedy row's tokens stand, and none of the other's."""
    rounds = Rounds(2, greedy=[greedy])
    num_accepted = [GAMMA if place == greedy else 0 for place in range(2)]
    drafted = [rounds.play(num_accepted) for _ in range(200)]
    assert all(each == [greedy] for each in drafted[100:])


def chosen(rounds: Rounds) -> tuple[int, int]:
    """In the latest round: how many rows, and how long chains."""
    rows, length = rounds.round.admission.chosen
    return len(rows), length


def rounds_of_one_good_row() -> Rounds:
    """Chains cost as much a token for every row; only the greedy row's pay, and they do at once."""
    times = DraftTimes([DraftTime(n, 0.05 * n, 0.1 * n) for n in (1, 64)])
    return Rounds(4, greedy=[0], times=times)


def test_chains_are_as_long_as_is_best_for_the_rows_that_are_drafted_for():
    """One good row alone drafts whole chains; in a trial of all, the bad ones make each dear."""
    rounds, seen = rounds_of_one_good_row(), []
    for _ in range(400):
        rounds.play([GAMMA, 0, 0, 0])
        seen.append(chosen(rounds))
    assert set(seen[100:]) == {(1, GAMMA), (4, 1)}


def test_a_round_that_reads_a_prompt_drafts_for_all_with_chains_that_suit_all():
    rounds = rounds_of_one_good_row()
    for _ in range(100):
        rounds.play([GAMMA, 0, 0, 0])
    assert chosen(rounds) == (1, GAMMA)
    rounds.round.rows[3].sequence.num_computed = 0
    rounds.round.admission.begin(rounds.round.rows)
    assert chosen(rounds) == (3, 1)


@pytest.mark.parametrize(("stands", "drafted"), [(0.7, [0, 1]), (0.62, [0])])
def test_who_costs_next_to_nothing_is_drafted_for_and_who_costs_more_is_not(stands, drafted):
    """A plain round takes 1 s, a block .2 s. The greedy row alone makes (2 + 2.4) / 1.2 tokens a
    second; with the other, (4.4 + .71) / 1.4 are .4 % fewer, and (4.4 + .63) / 1.4 are 2 % fewer.
    """
    usual = UsualAcceptance({"greedy": [0.9, 0.8, 0.7], "rejection": [stands, 0.0, 0.0]})
    rounds = Rounds(2, greedy=[0], usual=usual, token_s=0.0, block_s=0.2)
    admission, rows = rounds.round.admission, rounds.round.rows
    for _ in range(40):  # nothing is learned in these
        admission.begin(rows)
    assert [row.sequence.arrival for row in admission.chosen.rows] == drafted


def test_rows_are_ranked_by_the_tokens_that_are_drafted():
    """The greedy row's first token stands more often, and of whole blocks more of the other's.

    A plain round takes 1.1 s and a drafted token .35 s, so that one each is drafted at most: the
    greedy row alone makes 2.9 / 1.45 tokens a second, with the other 3.4 / 1.8.
    """
    usual = UsualAcceptance({"greedy": [0.9, 0.0, 0.0], "rejection": [0.5, 0.9, 0.9]})
    times = DraftTimes([DraftTime(n, 0.0, 0.3 * n) for n in (1, 64)])
    rounds = Rounds(2, greedy=[0], usual=usual, times=times)
    admission, rows = rounds.round.admission, rounds.round.rows
    for _ in range(40):  # nothing is learned in these
        admission.begin(rows)
    assert [row.sequence.arrival for row in admission.chosen.rows] == [0]
