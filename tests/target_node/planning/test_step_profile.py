"""What is known of forwards before the first request, and what is left of it afterwards."""

import numpy as np
import pytest

from target_node.blocks import BlockPool
from target_node.planning import round_prices, step_profile
from target_node.planning.policies import PricePolicy
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import Cell, Slopes, StepTable
from target_node.runner import Runner
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import fixture_model
from tests.target_node.planning.known import facts, now


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    for module in (step_profile, round_prices):
        monkeypatch.setattr(module, "time", found)
    return found


def measured(
    time, *, a_token_s=0.5e-3, num_blocks=100, max_tokens=512, stalls=(), rehearse=False
) -> StepTable:
    """Forwards of 2 ms and `a_token_s` a token; the calls in `stalls` take 1 s more."""
    steps, pool, calls = StepTable(), BlockPool(num_blocks, 16, prefix_cache=True), []

    def forward(batch):
        calls.append(len(batch.token_ids))
        time.now_s += 2e-3 + a_token_s * len(batch.token_ids)
        time.now_s += len(calls) in stalls

    step_profile.measure(steps, forward, pool, max_tokens=max_tokens, rehearse=rehearse)
    assert pool.num_free == pool.num_blocks
    assert not pool.num_cached
    return steps


def timed(seconds: dict[int, float]) -> StepTable:
    steps = StepTable()
    steps.learn({size: Cell(s, 3) for size, s in seconds.items()}, Slopes())
    return steps


def test_what_a_first_forward_of_a_size_prepares_is_not_timed(time):
    """One second each, so long that timed ones would be the last, too."""
    stalls = range(1, 16)
    line = measured(time, stalls=stalls, rehearse=True).freeze().line(4)
    assert line.turning_point == pytest.approx(4)
    assert measured(time, stalls=stalls).freeze().line(4) is None


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8, 16])
def test_every_load_has_its_line(num_rows, time):
    line = measured(time).freeze().line(num_rows)
    assert line.seconds(2 * num_rows) == pytest.approx(2e-3 + 0.5e-3 * 2 * num_rows)
    assert line.turning_point == pytest.approx(4)


def test_a_load_sees_a_token_a_row_to_a_block_a_row():
    """Where a curve bends, what is left of a load and right of it says nothing."""
    bent = {size: 1.0 + max(0, size - 16) for size in (1, 2, 4, 8, 16, 32, 64, 128)}
    assert timed(bent).freeze().line(1).token_s == pytest.approx(0)
    assert timed(bent).freeze().line(1).turning_point > 1e6
    assert timed(bent).freeze().line(16).token_s == pytest.approx(1)


@pytest.mark.parametrize(
    "bent", [{16: 1.0, 32: 17.0, 64: 49.0, 128: 113.0}, {16: 1.0, 32: 1.0, 64: 1.0, 128: 20.0}]
)
def test_where_tokens_are_dear_at_last_a_plain_round_takes_what_it_took(bent):
    line = timed(bent).freeze().line(16)
    assert line.seconds(16) == pytest.approx(1)
    assert line.token_s > 0.1
    assert line.turning_point == 0


def test_no_forward_is_larger_than_rounds_may_be_or_blocks_allow(time):
    assert max(measured(time, max_tokens=5).cells) == 4
    assert max(measured(time, num_blocks=1 + 2).cells) == 16
    assert measured(time, num_blocks=1).freeze().line(1) is None
    assert measured(time, max_tokens=1).freeze().line(1) is None  # of which no line can be made


def test_a_single_size_is_timed_once(time):
    steps, calls = StepTable(), []
    pool = BlockPool(10, 16, prefix_cache=True)
    step_profile.measure(
        steps, lambda batch: calls.append(len(batch.token_ids)), pool, max_tokens=1
    )
    assert calls == [1, 1]  # and the first of all


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_what_an_earlier_service_knew_is_brought_to_todays_pace(slower, time):
    steps, pool = measured(time), BlockPool(100, 16, prefix_cache=True)
    before = steps.freeze().at(1, 8).seconds(np.array([8, 64]))

    def forward(batch):
        time.now_s += slower * (2e-3 + 0.5e-3 * len(batch.token_ids))

    step_profile.check(steps, forward, pool, max_tokens=512)
    after = steps.freeze().at(1, 8).seconds(np.array([8, 64]))
    assert after == pytest.approx(slower * before, rel=0.01)
    assert pool.num_free == pool.num_blocks
    step_profile.check(StepTable(), forward, pool, max_tokens=512)  # of which nothing is known


@pytest.mark.parametrize("stalls", [{1}, {3}, {5}, {16}, {1, 5, 30}])
def test_a_stall_costs_sizes_at_most(stalls, time):
    assert measured(time, stalls=stalls).freeze().line(1).token_s == pytest.approx(0.5e-3)


def test_what_takes_longer_than_more_tokens_was_held_up():
    noisy = {1: 0.028, 2: 0.029, 3: 0.036, 4: 0.045, 6: 0.048, 8: 0.010, 12: 0.012, 16: 0.014}
    assert timed(noisy).freeze().line(1).seconds(1) <= 0.010
    assert timed({1: 3.0, 2: 0.1, 3: 0.15, 4: 0.2}).freeze().line(1).token_s > 0.02


def test_a_slow_model_is_measured_as_far_as_a_second_goes(time):
    now_s = time.now_s
    steps = measured(time, a_token_s=0.3)
    assert max(steps.cells) == 3
    assert time.now_s - now_s < 8
    assert measured(time, a_token_s=5.0).freeze().line(1) is None


def test_blocks_that_were_borrowed_are_erased_before_anybody_reads_them():
    pool, fresh = BlockPool(3, 16, prefix_cache=False), []
    step_profile.measure(
        StepTable(), lambda batch: fresh.extend(batch.fresh_blocks), pool, max_tokens=16
    )
    assert sorted(fresh) == [1, 2]
    taken = pool.allocate(2)
    assert set(pool.take_fresh()) == set(taken)


def test_forwards_of_a_model_are_timed():
    runner = Runner(
        fixture_model(), backend=BACKEND, num_blocks=20, block_size=4, deterministic=True
    )
    steps = StepTable()
    step_profile.measure(steps, runner.forward, BlockPool(20, 4, prefix_cache=True), max_tokens=64)
    assert max(steps.cells) == 64
    assert steps.freeze().line(4).seconds(4) > 0


# --- what it is for ----------------------------------------------------------------------------


def rounds(prices, time, count, *, num_rows=4, draft_s=0.0, token_s=0.1e-3, num_emitted=3):
    for k in range(count):
        size = num_rows * (1 + k % 3)
        prices.begin(num_rows)
        time.now_s += draft_s
        prices.launch(size)
        time.now_s += 3e-3 + token_s * size
        prices.observe(num_rows * num_emitted)
    prices.begin(num_rows)


def test_a_price_is_known_before_the_first_round(time):
    """Plain decoding of four rows makes 4 tokens in 4 ms, and one more takes .5 ms."""
    prices = RoundPrices(BACKEND, measured(time))
    prices.begin(4)
    assert now(prices).tokens_per_s == pytest.approx(1000)
    assert now(prices).token_price == pytest.approx(0.5, rel=0.02)
    assert PricePolicy().allocate([[0.9, 0.6, 0.4], [0.45], [0.55]], 99, facts(prices)) == [2, 0, 1]
    prices.begin(4, is_mixed=True)
    assert now(prices).token_price == 0


def test_forwards_may_be_timed_after_the_prices_were_made(time):
    steps = StepTable()
    prices = RoundPrices(BACKEND, steps)
    pool = BlockPool(100, 16, prefix_cache=True)

    def forward(batch):
        time.now_s += 1e-3 * len(batch.token_ids)

    step_profile.measure(steps, forward, pool, max_tokens=512)
    prices.begin(1)
    assert now(prices).token_price > 0


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("draft_s", [0.0, 0.02])
def test_a_dozen_rounds_outweigh_a_start_on_a_busy_machine(factor, draft_s, time):
    """Whether everything took ten times as long then or a tenth."""
    slow = timed({n: factor * (3e-3 + 0.1e-3 * n) for n in (4, 8, 16, 32)})
    prices, plain = RoundPrices(BACKEND, slow), RoundPrices(BACKEND)
    for each in (prices, plain):
        rounds(each, time, 12, draft_s=draft_s)
    assert now(prices).tokens_per_s == pytest.approx(now(plain).tokens_per_s, rel=0.03)
    assert now(prices).token_price == pytest.approx(now(plain).token_price, rel=0.2)


@pytest.mark.parametrize("wrong", [{4: 0.03, 8: 0.03, 16: 0.03}, {4: 1e-3, 8: 0.1, 16: 0.2}])
def test_a_few_rounds_outweigh_a_wrong_slope(wrong, time):
    prices = RoundPrices(BACKEND, timed(wrong))
    rounds(prices, time, 15)
    assert now(prices).token_price == pytest.approx(0.1 * 12 / 3.8, rel=0.3)


def test_a_first_round_that_reads_contexts_does_not_make_tokens_cheap(time):
    prices = RoundPrices(BACKEND, measured(time))
    prices.begin(4)
    before = now(prices).token_price
    time.now_s += 0.05
    prices.launch(4)
    time.now_s += 4e-3
    prices.observe(4)
    prices.begin(4)
    assert now(prices).token_price == pytest.approx(before, rel=0.05)


def test_rounds_of_many_drafts_are_not_taken_for_stalls(time):
    """They take longer than plain decoding, as they have to."""
    prices = RoundPrices(BACKEND, measured(time, a_token_s=1e-3))
    for _ in range(10):
        prices.begin(1)
        prices.launch(9)
        time.now_s += 11e-3
        prices.observe(3)
    prices.begin(1)
    assert now(prices).tokens_per_s == pytest.approx(3 / 11e-3, rel=0.02)


@pytest.mark.parametrize("a_token_s", [0.5e-3, 0.11])
def test_what_rows_and_keys_add_is_profiled(a_token_s, time):
    """Also of a model whose forwards of many rows would take too long."""
    steps, pool = StepTable(), BlockPool(2000, 16, prefix_cache=True)

    def forward(batch):
        attention = batch.attention
        keys, rows = int(attention.context_lens.sum()), len(attention.num_tokens)
        time.now_s += 2e-3 + a_token_s * len(batch.token_ids) + 3e-4 * rows + 2e-6 * keys

    step_profile.measure(steps, forward, pool, max_tokens=512)
    assert steps.slopes.key_s == pytest.approx(2e-6)
    is_quick = a_token_s < 0.1
    assert steps.slopes.row_s == pytest.approx(3e-4 if is_quick else 0.0)
    told = steps.freeze().at(4, 4000).seconds(np.array([16]))[0]
    rows = 4 if is_quick else 2  # as many as were profiled with it
    assert told == pytest.approx(2e-3 + a_token_s * 16 + 3e-4 * rows + 2e-6 * 4000, rel=1e-3)
    assert pool.num_free == pool.num_blocks


def test_a_short_model_or_a_small_pool_has_no_long_contexts(time):
    steps, longest = StepTable(), []

    def forward(batch):
        time.now_s += 1e-3
        longest.append(int(batch.attention.context_lens.max()))

    pool = BlockPool(2000, 16, prefix_cache=True)
    step_profile.measure(steps, forward, pool, max_tokens=512, max_keys=40)
    assert max(longest) == 40
