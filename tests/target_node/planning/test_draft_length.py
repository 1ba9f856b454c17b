"""Chains without confidences are as long as makes most tokens a second of what is usual."""

import numpy as np
import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.types import DraftTime
from target_node.planning import round_prices
from target_node.planning.draft_pace import DraftPace
from target_node.planning.drafted_rounds import ExpectedDrafts
from target_node.planning.policies import policy_named
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import Cell, Slopes, StepTable
from target_node.speculation import drafting
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import InProcessTarget, fixture_model, request


class Costs:
    """`StepCosts`: a forward of up to `free` tokens takes 1 s, and each one more `token_s`."""

    def __init__(self, free: int, token_s: float) -> None:
        self._free, self._token_s = free, token_s

    def seconds(self, num_tokens):
        return 1.0 + self._token_s * np.maximum(0, num_tokens - self._free)


def length(survivals, costs, *, pass_s=0.05, fixed_s=0.0, num_rows=1) -> int:
    rows = ExpectedDrafts.alike(num_rows, survivals, 1.0)
    best = rows.best(passes(pass_s, fixed_s), costs.seconds, counts=[num_rows])
    return best.num_drafted


def passes(pass_s: float, fixed_s: float = 0.0) -> DraftPace:
    """Chains that take as long for many rows as for one."""
    return DraftPace(lambda: DraftTimes([DraftTime(n, fixed_s, pass_s) for n in (1, 64)]))


def powers(share: float, count: int = 16) -> list[float]:
    return [share ** (k + 1) for k in range(count)]


def test_what_always_stands_is_drafted_as_far_as_it_may_be():
    assert length(powers(1.0), Costs(100, 0.0)) == 16
    assert length(powers(1.0, 4), Costs(100, 0.0)) == 4


def test_what_seldom_stands_is_drafted_as_little_as_can_be():
    assert length(powers(0.05), Costs(100, 0.0)) == 1


@pytest.mark.parametrize(("share", "pass_s"), [(0.8, 0.05), (0.8, 0.2), (0.6, 0.05), (0.9, 0.02)])
def test_it_is_the_best_of_all_lengths(share, pass_s):
    survivals = powers(share)
    speeds = [(1 + sum(survivals[:n])) / (1 + n * pass_s) for n in range(1, 17)]
    found = length(survivals, Costs(100, 0.0), pass_s=pass_s)
    assert speeds[found - 1] >= 0.99 * max(speeds)
    assert all(speed < 0.99 * max(speeds) for speed in speeds[: found - 1])


def test_a_stair_that_does_not_pay_is_not_climbed():
    class Stair:
        def seconds(self, num_tokens):
            return np.where(num_tokens <= 8, 1.0, 4.0)

    assert length(powers(0.9), Stair(), num_rows=2, pass_s=0.001) == 3
    assert length(powers(0.9), Stair(), num_rows=1, pass_s=0.001) == 7


def test_many_rows_draft_less_where_tokens_are_dear():
    dear = Costs(4, 0.1)
    assert length(powers(0.8), dear, num_rows=8) < length(powers(0.8), dear, num_rows=1)


# --- in the loop -------------------------------------------------------------------------------


class Telling:
    """Keeps how many tokens each chain was asked for."""

    def __init__(self, drafter: LanguageModelDrafter) -> None:
        self._draft, self.asked = drafter.draft, []
        drafter.draft = self

    def __call__(self, batch, sampler):
        self.asked.append(batch.most)
        return self._draft(batch, sampler)


def drafter(model, gamma=12) -> LanguageModelDrafter:
    return LanguageModelDrafter(model, backend=BACKEND, gamma=gamma, num_context_tokens=4096)


def decoded(monkeypatch, *, gamma: int, pass_s: float, forward_s: float = 0.02):
    """A target that drafts for itself, so that all greedy drafts stand; with clocks of our own."""
    time = ScriptedTime()
    for module in (round_prices, drafting):
        monkeypatch.setattr(module, "time", time)
    model = fixture_model()
    own = drafter(fixture_model(), gamma)
    told = Telling(own)
    steps = StepTable()
    steps.learn({1: Cell(forward_s, 8), 64: Cell(forward_s, 8)}, Slopes())
    prices = RoundPrices(BACKEND, steps)
    target = InProcessTarget(
        model,
        draft=own,
        prices=prices,
        pace=passes(0.001),  # as the start found, which was wrong
        budget=policy_named("price"),
        num_blocks=512,
    )
    forward, draft = target.runner.forward, own.draft

    def slow_forward(batch):
        time.now_s += forward_s
        return forward(batch)

    def slow_draft(batch, sampler):
        time.now_s += pass_s * (batch.most or gamma)
        return draft(batch, sampler)

    target.runner.forward, own.draft = slow_forward, slow_draft
    target.submit(request("r", [5, 9, 3], temperature=0.0, max_tokens=300, ignore_eos=True))
    target.run_until_idle()
    return told.asked, target.tokens["r", 0]


def test_chains_that_stand_grow_where_passes_are_cheap_and_stay_short_where_they_are_not(
    monkeypatch,
):
    cheap, text = decoded(monkeypatch, gamma=12, pass_s=0.0005)
    assert min(cheap[-8:]) >= 9
    dear, same = decoded(monkeypatch, gamma=12, pass_s=0.05)
    assert max(dear[8:]) < 4
    assert same == text


def test_who_has_confidences_is_not_told_how_long(monkeypatch):
    model = fixture_model()
    own = drafter(model)
    own.probs_confidence = lambda slot, logits: logits.new_full(logits.shape[:2], 0.9)
    told = Telling(own)
    target = InProcessTarget(fixture_model(), draft=own, prices=RoundPrices(BACKEND))
    target.submit(request("r", [5, 9, 3], temperature=0.0, max_tokens=20, ignore_eos=True))
    target.run_until_idle()
    assert set(told.asked) == {None}
