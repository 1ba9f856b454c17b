"""What a token costs follows from the times of rounds, and from nothing else."""

import random

import pytest

from target_node.planning import round_prices
from target_node.planning.policies import PricePolicy
from target_node.planning.round_prices import RoundPrices
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.planning.known import facts, now


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    monkeypatch.setattr(round_prices, "time", found)
    return found


@pytest.fixture
def prices():
    return RoundPrices(BACKEND)


def play(
    prices, time, num_tokens, *, num_rows=1, is_mixed=False, forward_s, draft_s=0.0, num_emitted=2
):
    """One round."""
    prices.begin(num_rows, is_mixed=is_mixed)
    time.now_s += draft_s
    prices.launch(num_tokens)
    time.now_s += forward_s
    prices.observe(num_emitted)


def price(prices, num_rows=1):
    prices.begin(num_rows)
    return now(prices).token_price


def test_nothing_costs_anything_before_rounds_were_measured(prices, time):
    assert price(prices) == 0
    for _ in range(3):
        play(prices, time, 5, forward_s=0.03)
    assert price(prices) == 0
    play(prices, time, 5, forward_s=0.03)
    assert price(prices) > 0


def test_a_round_in_which_something_was_recorded_does_not_count(prices, time, monkeypatch):
    for _ in range(8):
        play(prices, time, 5, forward_s=0.03, num_emitted=3)
    before = price(prices), now(prices).tokens_per_s
    prices.begin(1)
    prices.launch(5)
    time.now_s += 5
    monkeypatch.setattr(BACKEND, "num_first_calls", 1)
    prices.observe(1)
    assert (price(prices), now(prices).tokens_per_s) == before


def test_a_token_costs_what_it_adds_to_a_forward_at_the_speed_of_late(prices, time):
    rng = random.Random(1)
    for _ in range(400):
        size = rng.randint(1, 9)
        play(prices, time, size, forward_s=0.02 + 0.001 * size, draft_s=0.005, num_emitted=3)
    prices.begin(1)
    mean_round_s = 0.005 + 0.02 + 0.001 * 5
    assert now(prices).tokens_per_s == pytest.approx(3 / mean_round_s, rel=0.03)
    assert now(prices).token_price == pytest.approx(0.001 * 3 / mean_round_s, rel=0.1)


def test_without_forwards_of_other_sizes_the_usual_course_is_assumed(prices, time):
    for _ in range(50):
        play(prices, time, 6, forward_s=0.032, num_emitted=2)
    assert price(prices) == pytest.approx(2 / (BACKEND.turning_point + 6))


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_a_machine_that_is_slower_in_everything_has_the_same_prices(time, factor):
    found = []
    for scale in (1.0, factor):
        prices, rng = RoundPrices(BACKEND), random.Random(2)
        for _ in range(100):
            size = rng.randint(1, 9)
            play(prices, time, size, forward_s=scale * (0.02 + 0.002 * size))
        found.append(price(prices))
    assert found[0] == pytest.approx(found[1])


def test_loads_are_apart(prices, time):
    for size in [8, 16] * 20:
        play(prices, time, 1 + size % 7, num_rows=1, forward_s=0.02, num_emitted=2)
        play(prices, time, 8 * size, num_rows=16, forward_s=0.001 * 8 * size, num_emitted=30)
    assert price(prices, num_rows=16) > 4 * price(prices, num_rows=1)
    assert price(prices, num_rows=4) == 0


def test_one_round_in_which_others_had_the_core_hardly_counts(prices, time):
    rng = random.Random(3)
    for _ in range(200):
        size = rng.randint(1, 9)
        play(prices, time, size, forward_s=0.02 + 0.001 * size)
    before = price(prices)
    play(prices, time, 9, forward_s=3.0)
    assert price(prices) == pytest.approx(before, rel=0.15)


def test_a_token_costs_nothing_at_least_and_its_share_at_most(prices, time):
    for size in [2, 8] * 30:  # the larger, the faster: noise
        play(prices, time, size, forward_s=0.1 / size)
    assert price(prices) == 0
    prices = RoundPrices(BACKEND)
    for size in [2, 3] * 30:
        play(prices, time, size, forward_s=0.01 * 20**size, num_emitted=1)
    prices.begin(1)
    assert 0 < now(prices).token_price <= 1


def test_what_brings_less_than_it_costs_is_not_verified(prices, time):
    for _ in range(50):
        play(prices, time, 6, forward_s=0.032, num_emitted=8)  # 8 / 32: a quarter of a token
    prices.begin(1)
    assert PricePolicy().allocate([[0.9, 0.3, 0.2], [0.24], [0.26]], 9, facts(prices)) == [2, 0, 1]


def test_rounds_beside_prompts_have_prices_of_their_own(prices, time):
    for size in [1, 2, 3] * 20:
        play(prices, time, size, forward_s=0.02, num_emitted=2)
        play(prices, time, 200 + size, is_mixed=True, forward_s=0.2 + 0.002 * size, num_emitted=2)
    prices.begin(1, is_mixed=True)
    assert now(prices).tokens_per_s < 12
    prices.begin(1)
    assert now(prices).tokens_per_s > 90


def test_a_wrong_price_is_tried_out_now_and_then(prices, time):
    """Forwards are far flatter than assumed, and too dear is what is never verified."""
    budget, verified = PricePolicy(), []
    for _ in range(10):
        play(prices, time, 1, forward_s=0.02, num_emitted=8)
    for _ in range(600):
        prices.begin(1)
        lens = budget.allocate([[0.2, 0.1]], 9, facts(prices))
        verified.append(sum(lens))
        play(prices, time, 1 + sum(lens), forward_s=0.02, num_emitted=8)
    assert verified[:15] == [0] * 15
    assert sum(verified[-100:]) > 150
