"""Rows whose drafts do not pay are left out, one by one, and get another chance."""

from collections.abc import Collection

import msgspec
import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.types import DraftTime, Speculation
from target_node.planning.acceptance import Acceptance, OwnAcceptance
from target_node.planning.draft_pace import DraftPace
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import Cell, Slopes, StepTable
from target_node.sampler import SampledRow
from tests.backends.chosen import BACKEND
from tests.target_node.speculation.test_speculation import Round

GAMMA = 3


class Rounds:
    """Of rows whose blocks take a twentieth of a forward each, and of whose tokens some stand."""

    def __init__(
        self,
        num_rows: int,
        *,
        may_pause: bool = True,
        token_s: float = 0.05,
        block_s: float = 0.05,
        confidences: list[float] | None = None,
        greedy: Collection[int] = (),
        usual: UsualAcceptance | None = None,
        times: DraftTimes | None = None,
    ) -> None:
        """`confidences`: of each row's tokens, if the drafter has some; `greedy`: such rows.

        `times`: of the drafter, if not `block_s` for each block.
        """
        self.confidences = confidences
        table = StepTable()
        table.learn({n: Cell(1 + token_s * n, 8) for n in (1, 64)}, Slopes())
        times = times or DraftTimes([DraftTime(n, block_s * n, 0.0) for n in (1, 64)])
        self.pace = DraftPace(lambda: times)
        self.round = Round(
            [5] * num_rows,
            places=9,
            spare=9 * num_rows,
            gamma=GAMMA,
            prices=RoundPrices(BACKEND, table),
            drafts=self.pace,
            may_pause=may_pause,
            budget=ThresholdPolicy(0.3),
            acceptance=Acceptance(GAMMA, usual),
        )
        for place in greedy:
            self.ask(place, sampling={"temperature": 0.0})

    def ask(self, place: int, *, sampling: dict[str, object] | None = None, **fields) -> None:
        """The row's request is another in so much."""
        sequence = self.round.rows[place].sequence
        replace = msgspec.structs.replace
        asked = replace(sequence.request.sampling, **(sampling or {}))
        sequence.request = replace(sequence.request, sampling=asked, **fields)

    def play(self, num_accepted: list[int]) -> list[int]:
        """One round, with so many tokens of each row that stand; the rows that had drafts."""
        admission, rows = self.round.admission, self.round.rows
        admission.begin(rows)
        chosen = [row.sequence for row in admission.chosen.rows]
        found = {sequence: self._block(sequence.arrival) for sequence in chosen}
        admission.count_covered(found)
        admitted = admission.admit(rows, found)
        results = [
            SampledRow([2] * (1 + number), number) if row.sequence in found else SampledRow([2], 0)
            for row, number in zip(rows, num_accepted, strict=True)
        ]
        admission.observe(admitted, results)
        self.round.end()
        return sorted(row.sequence.arrival for row in rows if row.sequence in chosen)

    def _block(self, place: int) -> Speculation:
        confidences = None if self.confidences is None else (self.confidences[place],) * GAMMA
        return Speculation((3,) * GAMMA, confidences)


def test_a_row_whose_confidences_speak_against_it_is_left_out():
    """Nothing of its blocks is verified, so nothing of them is ever accepted or rejected."""
    rounds = Rounds(4, block_s=0.4, confidences=[0.95, 0.02, 0.95, 0.95])
    drafted = [rounds.play([GAMMA, 0, GAMMA, GAMMA]) for _ in range(300)]
    late = drafted[100:]
    assert sum(1 in each for each in late) < 0.3 * len(late)
    assert all({0, 2, 3} <= set(each) for each in late)


def test_what_a_row_may_not_verify_brings_nothing():
    rounds = Rounds(1, block_s=0.9, token_s=0.0)
    assert all(rounds.play([GAMMA]) for _ in range(200))
    rounds = Rounds(1, block_s=0.9, token_s=0.0)
    rounds.ask(0, max_verify_len=1)
    drafted = [rounds.play([0 if n % 3 else 1]) for n in range(200)]
    assert not any(drafted[-50:])


def test_a_row_that_may_verify_little_is_not_held_to_what_whole_blocks_bring():
    """Its one token always stands, for less than a forward's time."""
    rounds = Rounds(1, block_s=0.7, token_s=0.0)
    rounds.ask(0, max_verify_len=1)
    assert all(rounds.play([1]) for _ in range(200))


@pytest.mark.parametrize("capped", [0, 1])
def test_a_row_that_may_verify_little_costs_no_more_than_that(capped):
    """Its one token brings more than it takes; a whole block would not."""
    rounds = Rounds(2, block_s=0.1, token_s=0.3)
    rounds.ask(capped, max_verify_len=1)
    num_accepted = [1 if place == capped else GAMMA for place in range(2)]
    assert all(rounds.play(num_accepted) == [0, 1] for _ in range(200))


def test_rows_that_were_left_out_do_not_count_as_rows_without_a_block():
    rounds = Rounds(3)
    drafted = [rounds.play([GAMMA, 0, GAMMA]) for _ in range(200)]
    assert drafted[-1] == [0, 2]
    assert rounds.round.admission._acceptance.coverage("rejection") == 1.0


def test_who_has_ended_is_forgotten():
    rounds = Rounds(2)
    for _ in range(20):
        rounds.play([1, 2])
    chooser = rounds.round.admission._chooser
    assert chooser is not None
    assert len(chooser._own) == 2
    for row in rounds.round.rows:
        rounds.round.admission.forget(row.sequence)
    assert not chooser._own


@pytest.mark.parametrize("may_pause", [True, False])
def test_a_row_of_which_nothing_stands_is_left_out_and_the_others_are_not(may_pause):
    rounds = Rounds(3, may_pause=may_pause)
    drafted = [rounds.play([GAMMA, 0, GAMMA]) for _ in range(200)]
    late = drafted[100:]
    assert all({0, 2} <= set(each) for each in late)
    assert (sum(1 in each for each in late) < 0.3 * len(late)) is may_pause


def test_a_row_that_was_left_out_is_drafted_for_again():
    rounds = Rounds(3)
    for _ in range(100):
        rounds.play([GAMMA, 0, GAMMA])
    drafted = [rounds.play([GAMMA] * 3) for _ in range(150)]  # sooner than by the next trial
    assert sum(1 in each for each in drafted[-20:]) > 15


def test_rows_that_are_alike_are_all_drafted_for():
    rounds = Rounds(4, token_s=0.0)
    assert all(rounds.play([2, 2, 2, 2]) == [0, 1, 2, 3] for _ in range(300))


def test_under_saturation_nobody_is_drafted_for():
    """A token costs what plain decoding pays for one: none stands often enough."""
    rounds = Rounds(8, token_s=10.0)
    drafted = [rounds.play([n % 2, (n + 1) % 2] * 4) for n in range(400)]
    assert sum(map(bool, drafted[-200:])) <= 16  # but for a trial


def test_how_a_row_fares_is_held_against_what_is_usual():
    own = OwnAcceptance()
    assert own.factor == 1.0
    for _ in range(50):
        own.observe([0.8, 0.6], 2)
    assert 1.2 < own.factor < 1.5
    for _ in range(200):
        own.observe([0.8, 0.6], 0)
    assert own.factor < 0.2
    for _ in range(300):
        own.pass_over()
    assert own.factor > 0.9
