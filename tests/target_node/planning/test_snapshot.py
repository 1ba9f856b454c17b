"""What admission reads in a round was written down before any token of the round's blocks was.

Synchronous: before the round drafts. Asynchronous: before the verification of the round before it
begins, as its blocks are drawn meanwhile.
"""

import numpy as np
import pytest

from specserve.types import Speculation
from target_node.planning import round_prices
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import StepSize, StepTable
from target_node.sampler import SampledRow
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.speculation.test_speculation import Round

FOUR = np.array([4])


class Listening(ThresholdPolicy):
    """Verifies all, and keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told, self.survivals = [], []

    def allocate(self, survivals, capacity, facts):
        self.told.append(facts)
        self.survivals += survivals
        return super().allocate(survivals, capacity, facts)


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", found)
    return found


class Rounds:
    """Of one row, whose forwards take what they are told to."""

    def __init__(self, time, *, is_asynchronous: bool) -> None:
        self.policy, self._time = Listening(), time
        self.steps = StepTable()
        self._round = Round(
            [5],
            places=3,
            spare=4,
            gamma=3,
            prices=RoundPrices(BACKEND, self.steps),
            budget=self.policy,
            is_asynchronous=is_asynchronous,
        )

    def play(self, forward_s, *, num_accepted=0, confidences=None):
        """One round, and what its allocator was told."""
        admission, rows = self._round.admission, self._round.rows
        admission.begin(rows)
        found = {rows[0].sequence: Speculation((3, 3, 3), confidences)}
        admitted = admission.admit(rows, found)
        self._time.now_s += forward_s
        admission.observe(admitted, [SampledRow(token_ids=[2], num_accepted=num_accepted)])
        num_tokens = sum(row.num_tokens for row in admitted)
        self.steps.observe(StepSize(1, num_tokens, num_tokens), forward_s)
        self._round.end()
        rows[0].sequence.num_rounds += 1
        return self.policy.told[-1]


@pytest.mark.parametrize(("is_asynchronous", "delay"), [(False, 1), (True, 2)])
def test_a_rounds_time_is_known_one_round_later_or_two(time, is_asynchronous, delay):
    rounds = Rounds(time, is_asynchronous=is_asynchronous)
    for _ in range(9):
        rounds.play(0.02)
    usual = rounds.play(0.02).snapshot
    assert usual.costs.seconds(FOUR)[0] == pytest.approx(0.02, rel=0.01)
    rounds.play(0.5)  # a long forward
    told = [rounds.play(0.02).snapshot for _ in range(3)]
    later = [facts.costs.seconds(FOUR)[0] > 0.0201 for facts in told]
    assert later == [place + 1 >= delay for place in range(3)]


@pytest.mark.parametrize(("is_asynchronous", "delay"), [(False, 1), (True, 2)])
def test_what_was_accepted_is_known_one_round_later_or_two(time, is_asynchronous, delay):
    rounds = Rounds(time, is_asynchronous=is_asynchronous)
    for _ in range(5):
        rounds.play(0.02, num_accepted=3)
    told = [survival[0] for survival in rounds.policy.survivals]
    assert told == pytest.approx([prior_after(max(0, k + 1 - delay)) for k in range(5)])


def prior_after(count):
    """The prior of first tokens after so many accepted ones: as if 16 had been seen before."""
    kept = 1 - 1 / 512
    accepted, seen = 0.7 * 16, 16.0
    for _ in range(count):
        accepted, seen = kept * accepted + 1, kept * seen + 1
    return accepted / seen


def test_survivals_of_two_rounds_before_are_told_and_the_priors_where_there_are_none(time):
    rounds = Rounds(time, is_asynchronous=True)
    first = rounds.play(0.02, confidences=(0.9, 0.5, 0.5))
    assert first.before == [pytest.approx([0.7, 0.49, 0.343])]
    second = rounds.play(0.02, confidences=(0.8, 0.5, 0.5))
    assert second.before == first.before
    third = rounds.play(0.02, confidences=(0.7, 0.5, 0.5))
    assert third.before == [pytest.approx([0.9, 0.45, 0.225])]
    fourth = rounds.play(0.02, confidences=(0.6, 0.5, 0.5))
    assert fourth.before == [pytest.approx([0.8, 0.4, 0.2])]
    assert fourth.num_tokens == 1


def test_nothing_is_kept_of_a_sequence_that_has_ended(time):
    rounds = Rounds(time, is_asynchronous=True)
    rounds.play(0.02)
    admission = rounds._round.admission
    assert admission._last_survivals
    admission.forget(rounds._round.rows[0].sequence)
    assert not admission._last_survivals
