"""Under `--speculation sync` nobody is drafted for where that is slower than plain decoding."""

import time

import numpy as np
import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.types import DraftTime, Speculation
from target_node.planning import round_prices
from target_node.planning.acceptance import Acceptance, survival_of
from target_node.planning.draft_pace import DraftPace
from target_node.planning.drafted_rounds import ExpectedDrafts
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import Cell, Slopes, StepTable
from target_node.sampler import SampledRow
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import InProcessTarget, fixture_model, request
from tests.target_node.speculation.test_speculation import Round

ROUND_S = 0.02


def flat_table(seconds: float = ROUND_S) -> StepTable:
    table = StepTable()
    table.learn({1: Cell(seconds, 8), 64: Cell(seconds, 8)}, Slopes())
    return table


class StraightSteps:
    """A plain row takes 1 second, and every token more as much as is said."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def seconds(self, num_tokens):
        return 1 + self._token_s * (np.array(num_tokens, np.float64) - 1)


def taking(seconds: float) -> DraftPace:
    """Drafts of one pass, however many."""
    return DraftPace(lambda: DraftTimes([DraftTime(n, seconds, 0.0) for n in (1, 64)]))


@pytest.mark.parametrize(
    ("accepted", "draft_s", "token_s", "pays"),
    [
        (0.5, 0.4, 0.0, True),  # .5 + .25 + .125 tokens more for .4 seconds
        (0.5, 1.0, 0.0, False),
        (0.5, 0.4, 0.5, False),  # what it brings is what verifying takes
        (0.9, 1.0, 0.0, True),
        (0.0, 0.02, 0.0, True),  # about as fast, and texts may change
        (0.0, 0.05, 0.0, False),
    ],
)
def test_what_drafts_bring_is_held_against_what_they_take(accepted, draft_s, token_s, pays):
    rows = ExpectedDrafts.alike(1, survival_of([accepted] * 3), 1.0)
    seconds = StraightSteps(token_s).seconds
    assert rows.pays(rows.best(taking(draft_s), seconds), seconds) is pays


def test_a_drafter_that_has_something_for_few_rows_brings_less():
    seconds, survivals = StraightSteps(0.0).seconds, survival_of([0.5, 0.5])
    often, seldom = (ExpectedDrafts.alike(8, survivals, share) for share in (1.0, 0.1))
    assert often.pays(often.best(taking(0.2), seconds), seconds)
    assert not seldom.pays(seldom.best(taking(0.2), seconds), seconds)


def test_those_whose_drafts_bring_least_are_left_out():
    """A block takes .3 seconds more for each row, and brings two tokens of eight rows a second."""
    standing = np.array([[0.9, 1.7], [0.9, 1.7], [0.1, 0.1], [0.0, 0.0]])
    rows = ExpectedDrafts(4, 4, standing, np.ones(4), np.full(4, 2))
    by_row = DraftPace(lambda: DraftTimes([DraftTime(1, 0.1, 0.0), DraftTime(4, 0.4, 0.0)]))
    best = rows.best(by_row, StraightSteps(0.0).seconds)
    assert (best.num_rows, best.num_drafted) == (2, 2)
    assert best.tokens == pytest.approx(4 + 2 * 1.7)
    assert best.seconds == pytest.approx(1.2)
    free = rows.best(taking(0.1), StraightSteps(0.0).seconds)
    assert free.num_rows >= 3  # that of which nothing stands changes nothing


class Rounds:
    """Of some rows, with drafts that take as long as half a round."""

    draft_s = ROUND_S / 2

    def __init__(self, monkeypatch, num_rows: int = 1, *, may_pause: bool = True) -> None:
        self._time = ScriptedTime()
        monkeypatch.setattr(round_prices, "time", self._time)
        self.pace = DraftPace()
        lengths = [5] * num_rows
        self._round = Round(
            lengths,
            places=9,
            spare=9 * num_rows,
            gamma=3,
            prices=RoundPrices(BACKEND, flat_table()),
            drafts=self.pace,
            may_pause=may_pause,
            budget=ThresholdPolicy(),
        )

    def play(self, num_accepted: int, *, has_blocks: bool = True, catches_up: bool = False) -> bool:
        """One round; whether it drafted, or tried to while contexts caught up."""
        admission, rows = self._round.admission, self._round.rows
        admission.begin(rows)
        drafts = bool(admission.chosen.rows)
        found = {row.sequence: Speculation((3, 3, 3)) for row in admission.chosen.rows}
        found = found if has_blocks and not catches_up else {}
        if drafts:
            self._time.now_s += self.draft_s
            if not catches_up:
                self.pace.observe(len(rows), 3, self.draft_s)
            late = [row.sequence for row in rows] if catches_up else []
            admission.count_covered(found, late)
        admitted = admission.admit(rows, found)
        self._time.now_s += ROUND_S
        accepted = num_accepted if found else 0
        results = [SampledRow([2] * (1 + accepted), accepted) for _ in rows]
        admission.observe(admitted, results)
        self._round.end()
        return drafts


def test_what_brings_nothing_is_drafted_seldom(monkeypatch):
    rounds = Rounds(monkeypatch)
    drafted = [rounds.play(0) for _ in range(4000)]
    first = drafted.index(False)
    assert first < 40
    assert 16 <= sum(drafted[first:]) < 0.03 * 4000  # it is tried again, ever more rarely


@pytest.mark.parametrize("num_accepted", [1, 3])
def test_what_pays_goes_on(monkeypatch, num_accepted):
    rounds = Rounds(monkeypatch)
    assert all(rounds.play(num_accepted) for _ in range(1000))


def test_drafting_begins_again_once_texts_are_others(monkeypatch):
    rounds = Rounds(monkeypatch)
    for _ in range(200):
        rounds.play(0)
    drafted = [rounds.play(3) for _ in range(3000)]
    assert not drafted[0]
    assert all(drafted[-100:])


@pytest.mark.parametrize("num_slow", [1, 5, 40])
def test_slow_first_drafts_do_not_speak_against_later_ones(monkeypatch, num_slow):
    """Contexts catch up in the first; or the machine has had other work."""
    rounds = Rounds(monkeypatch)
    for _ in range(num_slow):
        rounds.draft_s = 50 * ROUND_S
        rounds.play(3)
    rounds.draft_s = ROUND_S / 2
    drafted = [rounds.play(3) for _ in range(4000)]
    assert sum(drafted) > 3000
    assert all(drafted[-100:])


def test_who_is_better_than_was_believed_is_found_out(monkeypatch):
    """Nothing was believed of a drafter of which all tokens stand."""
    rounds = Rounds(monkeypatch)
    hopeless = UsualAcceptance({"coupled": [0.05], "greedy": [0.05], "rejection": [0.05]})
    rounds._round.admission._acceptance = Acceptance(3, hopeless)
    drafted = [rounds.play(3) for _ in range(2000)]
    assert all(drafted[-100:])


def test_contexts_that_catch_up_say_nothing_of_drafts(monkeypatch):
    """Of many rows with long prompts they do for more rounds than a trial has."""
    rounds = Rounds(monkeypatch)
    rounds.pace.observe(1, 3, rounds.draft_s)
    rounds.pace.observe(1, 3, rounds.draft_s)
    assert all(rounds.play(0, catches_up=True) for _ in range(40))
    acceptance = rounds._round.admission._acceptance
    assert acceptance.coverage("greedy") == Acceptance(3).coverage("greedy")
    assert all(rounds.play(3) for _ in range(200))


def test_contexts_that_never_catch_up_are_not_waited_for(monkeypatch):
    rounds = Rounds(monkeypatch)
    rounds.pace.observe(1, 3, 4 * ROUND_S)
    rounds.pace.observe(1, 3, 4 * ROUND_S)
    drafted = [rounds.play(0, catches_up=True) for _ in range(400)]
    assert 16 < drafted.index(False) < 100


def test_blocks_that_are_there_again_count(monkeypatch):
    rounds = Rounds(monkeypatch)
    for _ in range(400):
        rounds.play(0, has_blocks=False)
    drafted = [rounds.play(3) for _ in range(4000)]
    assert not drafted[0]
    assert all(drafted[-100:])


def test_without_leave_nothing_pauses(monkeypatch):
    rounds = Rounds(monkeypatch, may_pause=False)
    assert all(rounds.play(0) for _ in range(300))


def test_a_round_that_reads_prompts_besides_drafts_always(monkeypatch):
    rounds = Rounds(monkeypatch, num_rows=2)
    for _ in range(200):
        rounds.play(0)
    admission, (decoding, reading) = rounds._round.admission, rounds._round.rows
    admission.begin([decoding, reading])
    assert not admission.chosen.rows
    reading.sequence.num_computed = 0  # it reads its prompt
    admission.begin([decoding, reading])
    assert admission.chosen.rows == [decoding]


def test_kinds_of_verification_are_told_apart():
    acceptance = Acceptance(2)
    for _ in range(200):
        acceptance.of("greedy").observe(2, 0)
    frozen = acceptance.freeze()
    assert frozen.confidences("greedy")[0] < 0.1
    assert frozen.confidences("coupled") == [0.7, 0.7]


class Wrong(NgramDrafter):
    """Always sure, never right, and slow."""

    num_drafts = 0

    def __init__(self, right: list[int]) -> None:
        super().__init__(gamma=3, shortest=1)
        self._right = right

    def draft(self, batch, method):
        time.sleep(0.01)
        self.num_drafts += 1
        drawn = super().draft(batch, method)
        unlike = next(token for token in range(2, 64) if token not in self._right)
        drawn.token_ids[:] = unlike
        return drawn


def test_a_drafter_of_which_nothing_is_accepted_is_told_of_once_and_left_alone(caplog):
    model, prompt = fixture_model(), [5, 9, 3, 7, 5, 9, 3]
    fields = {"temperature": 0.0, "max_tokens": 300, "ignore_eos": True}
    plain = InProcessTarget(model)
    plain.submit(request("r", prompt, **fields))
    plain.run_until_idle()
    text = plain.tokens["r", 0]

    drafter = Wrong(text)
    prices = RoundPrices(BACKEND, flat_table(0.002))
    target = InProcessTarget(model, draft=drafter, prices=prices, may_pause=True)
    target.submit(request("r", prompt, **fields))
    target.run_until_idle()
    assert target.tokens["r", 0] == text
    assert drafter.num_drafts < 60
    (line,) = [each for each in caplog.messages if "were accepted" in each]
    assert line.startswith("0 of ")
    assert "it pauses" in line
