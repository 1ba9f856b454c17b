"""Drafting stops where it costs more than it brings, is tried again, and changes no text."""

import random
import time

import pytest

from specserve.drafters.ngram import NgramDrafter
from target_node.planning import round_prices
from target_node.planning.round_prices import RoundPrices
from target_node.speculation.draft_pauses import DraftPauses
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import InProcessTarget, fixture_model, request
from tests.target_node.planning.known import now

PLAIN_S = 0.01


def share_drafted(gain: float, cost: float, *, rounds: int = 8000, seed: int = 1) -> float:
    """Of the rounds, where each brings a whole number of tokens, so much on average."""
    pauses, rng, num_drafted = DraftPauses(), random.Random(seed), 0
    for _ in range(rounds):
        noise = rng.uniform(0.8, 1.2)
        if pauses.drafts:
            num_drafted += 1
            brought = int(gain) + (rng.random() < gain % 1)
            pauses.observe(1 + brought, PLAIN_S * (1 + cost) * noise)
        else:
            pauses.observe(1, PLAIN_S * noise)
    return num_drafted / rounds


@pytest.mark.parametrize("cost", [0.2, 1.0, 5.0])
def test_what_brings_nothing_is_drafted_seldom(cost):
    assert share_drafted(0.0, cost) < 0.03


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("gain", "cost"), [(0.5, 0.25), (1.8, 0.9), (0.0, 0.01), (0.25, 0.2)])
def test_what_pays_or_costs_nothing_goes_on(gain, cost, seed):
    assert share_drafted(gain, cost, seed=seed) > 0.9


def test_the_core_that_others_had_for_a_moment_stops_nothing():
    pauses = DraftPauses()
    for place in range(4000):
        slow = 20.0 if place % 50 == 9 else 1.0
        pauses.observe(*((1.8, PLAIN_S * 1.4 * slow) if pauses.drafts else (1, PLAIN_S)))
    assert pauses.num_pauses == 0


@pytest.mark.parametrize(
    ("gain", "slow_ones_draft", "goes_on"), [(1.8, True, True), (0.0, False, False)]
)
def test_the_first_round_after_a_change_says_nothing(gain, slow_ones_draft, goes_on):
    """Contexts catch up in it, and caches."""
    pauses, drafted = DraftPauses(), [False]
    for _ in range(2000):
        drafts = pauses.drafts
        is_slow = drafts == slow_ones_draft and drafts != drafted[-1]
        drafted.append(drafts)
        seconds = PLAIN_S * (1.9 if drafts else 1.0) * (50.0 if is_slow else 1.0)
        pauses.observe(1 + gain if drafts else 1.0, seconds)
    assert (sum(drafted) > 1900) is goes_on


def test_plain_rounds_in_which_others_had_the_core_do_not_make_drafts_look_cheap():
    pauses, num_drafted, num_plain = DraftPauses(), 0, 0
    for _ in range(2000):
        if pauses.drafts:
            num_drafted += 1
            pauses.observe(1.0, PLAIN_S * 1.9)
        else:
            num_plain += 1
            pauses.observe(1.0, PLAIN_S * (20.0 if num_plain % 6 == 0 else 1.0))
    assert num_drafted < 200


def test_drafting_goes_on_once_it_pays_again():
    pauses = DraftPauses()
    drafted = []
    for place in range(6000):
        drafted.append(pauses.drafts)
        tokens = 2.0 if place > 2000 else 1.0
        pauses.observe(*((tokens, PLAIN_S * 1.5) if drafted[-1] else (1.0, PLAIN_S)))
    assert sum(drafted[:2000]) < 200
    assert sum(drafted[4500:]) > 1400


def play(prices, time, *, num_emitted, num_rows=4, is_mixed=False):
    """One round: drafts take half of a plain forward, and 20 tokens more a fifth."""
    prices.begin(num_rows, is_mixed=is_mixed)
    drafts = now(prices).drafts
    time.now_s += 0.01 if drafts else 0.0
    prices.launch(num_rows * 6 if drafts else num_rows)
    time.now_s += 0.024 if drafts else 0.02
    prices.observe(num_emitted if drafts else num_rows, wanted_drafts=drafts or not is_mixed)
    return drafts


@pytest.mark.parametrize(
    ("num_emitted", "goes_on"), [(4, False), (5, False), (7, True), (12, True)]
)
def test_a_rounds_tokens_are_held_against_its_time(monkeypatch, num_emitted, goes_on):
    time = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", time)
    prices = RoundPrices(BACKEND, may_pause=True)
    drafted = [play(prices, time, num_emitted=num_emitted) for _ in range(600)]
    assert (sum(drafted) > 580) is goes_on
    assert (prices.num_pauses == 0) is goes_on


def test_every_load_has_pauses_of_its_own(monkeypatch):
    time = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", time)
    prices = RoundPrices(BACKEND, may_pause=True)
    for _ in range(100):
        play(prices, time, num_emitted=16, num_rows=16)
    assert not play(prices, time, num_emitted=16, num_rows=16)
    assert play(prices, time, num_emitted=3, num_rows=1)


def test_without_leave_nothing_pauses(monkeypatch):
    time = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", time)
    prices = RoundPrices(BACKEND)
    assert all(play(prices, time, num_emitted=4) for _ in range(300))


def test_rounds_in_which_nobody_wants_drafts_say_nothing_of_them(monkeypatch):
    time = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", time)
    prices = RoundPrices(BACKEND, may_pause=True)
    for _ in range(300):
        prices.begin(1)
        assert now(prices).drafts
        prices.launch(1)
        time.now_s += 0.02
        prices.observe(1, wanted_drafts=False)


def test_rounds_that_read_prompts_besides_always_draft(monkeypatch):
    time = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", time)
    prices = RoundPrices(BACKEND, may_pause=True)
    assert all(play(prices, time, num_emitted=4, is_mixed=True) for _ in range(300))


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
    target = InProcessTarget(model, draft=drafter, prices=RoundPrices(BACKEND, may_pause=True))
    target.submit(request("r", prompt, **fields))
    target.run_until_idle()
    assert target.tokens["r", 0] == text
    assert 60 < drafter.num_drafts < 90
    (line,) = [each for each in caplog.messages if "were accepted" in each]
    assert line.startswith("0 of ")
    assert "it pauses" in line
