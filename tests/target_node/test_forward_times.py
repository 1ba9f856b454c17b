"""What is known of forwards before the first request, and what is left of it afterwards."""

import pytest

from target_node import forward_times, round_prices
from target_node.blocks import BlockPool
from target_node.budget import PricedBudget
from target_node.forward_times import ForwardTimes
from target_node.round_prices import RoundPrices
from target_node.runner import Runner
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import fixture_model


@pytest.fixture
def time(monkeypatch):
    found = ScriptedTime()
    for module in (forward_times, round_prices):
        monkeypatch.setattr(module, "time", found)
    return found


def measured(time, *, a_token_s=0.5e-3, num_blocks=100, max_tokens=512, stalls=()) -> ForwardTimes:
    """Forwards of 2 ms and `a_token_s` a token; the calls in `stalls` take 1 s more."""
    forwards, pool, calls = ForwardTimes(), BlockPool(num_blocks, 16, prefix_cache=True), []

    def forward(batch):
        calls.append(batch)
        time.now_s += 2e-3 + a_token_s * len(batch.token_ids)
        time.now_s += len(calls) in stalls

    forwards.measure(forward, pool, max_tokens=max_tokens)
    assert pool.num_free == pool.num_blocks
    assert not pool.num_cached
    return forwards


def test_a_load_knows_forwards_from_a_token_a_row_to_a_block_a_row(time):
    forwards = measured(time)
    assert [size for size, _ in forwards.of(1)] == [1, 2, 3, 4, 6, 8]
    assert [size for size, _ in forwards.of(4)] == [4, 6, 8, 12, 16, 24, 32]
    assert [size for size, _ in forwards.of(16)] == [16, 24, 32, 48, 64, 96, 128]
    for size, seconds in forwards.of(4):
        assert seconds == pytest.approx(2e-3 + 0.5e-3 * size)


def test_no_forward_is_larger_than_rounds_may_be_or_blocks_allow(time):
    assert [size for size, _ in measured(time, max_tokens=5).of(1)] == [1, 2, 3, 4]
    assert [size for size, _ in measured(time, num_blocks=1 + 2).of(2)] == [2, 3, 4, 6, 8, 12, 16]
    assert not measured(time, num_blocks=1).of(1)


def test_one_stall_is_not_seen_and_a_slow_model_is_measured_as_far_as_a_second_goes(time):
    assert measured(time, stalls={2}).of(1)[0][1] == pytest.approx(2.5e-3)
    now_s = time.now_s
    assert [size for size, _ in measured(time, a_token_s=3.0).of(1)] == [1]
    assert time.now_s - now_s < 4
    forwards = measured(time, a_token_s=0.1)
    assert [size for size, _ in forwards.of(1)] == [1, 2, 3]


def test_blocks_that_were_borrowed_are_erased_before_anybody_reads_them(time):
    forwards, pool, fresh = ForwardTimes(), BlockPool(3, 16, prefix_cache=False), set()
    forwards.measure(lambda batch: fresh.update(batch.fresh_blocks), pool, max_tokens=16)
    assert fresh == {1, 2}
    taken = pool.allocate(2)
    assert set(pool.take_fresh()) == set(taken)


def test_forwards_of_a_model_have_its_sizes():
    runner = Runner(fixture_model(), num_blocks=20, block_size=4, deterministic=True)
    forwards = ForwardTimes()
    forwards.measure(runner.forward, BlockPool(20, 4, prefix_cache=True), max_tokens=64)
    assert [size for size, _ in forwards.of(4)] == [4, 6, 8, 12, 16, 24, 32]
    assert all(seconds > 0 for _, seconds in forwards.of(4))


def test_a_price_is_known_before_the_first_round(time):
    """Plain decoding of four rows makes 4 tokens in 4 ms, and one more takes .5 ms."""
    prices = RoundPrices("cpu", measured(time))
    prices.begin(4)
    assert prices.worth.tokens_per_s == pytest.approx(1000)
    assert prices.worth.token_price == pytest.approx(0.5, rel=0.02)
    assert PricedBudget(prices).allocate([[0.9, 0.6, 0.4], [0.45], [0.55]], 99) == [2, 0, 1]
    prices.begin(4, is_mixed=True)
    assert prices.worth.token_price == 0


def test_forwards_may_be_timed_after_the_prices_were_made(time):
    forwards = ForwardTimes()
    prices = RoundPrices("cpu", forwards)
    pool = BlockPool(100, 16, prefix_cache=True)

    def forward(batch):
        time.now_s += 1e-3 * len(batch.token_ids)

    forwards.measure(forward, pool, max_tokens=512)
    prices.begin(1)
    assert prices.worth.token_price > 0


def test_rounds_of_its_own_outweigh_what_was_timed(time):
    prices = RoundPrices("cpu", measured(time))
    for k in range(800):
        size = 4 + 4 * (k % 3)
        prices.begin(4)
        prices.launch(size)
        time.now_s += 3e-3 + 0.1e-3 * size
        prices.observe(12)
    prices.begin(4)
    assert prices.worth.tokens_per_s == pytest.approx(12 / 3.8e-3, rel=0.1)
    assert prices.worth.token_price == pytest.approx(0.1 * 12 / 3.8, rel=0.25)


def test_a_first_round_that_reads_contexts_does_not_make_tokens_cheap(time):
    prices = RoundPrices("cpu", measured(time))
    before = (prices.begin(4), prices.worth.token_price)[1]
    prices.begin(4)
    time.now_s += 0.05
    prices.launch(4)
    time.now_s += 4e-3
    prices.observe(4)
    prices.begin(4)
    assert prices.worth.token_price == pytest.approx(before, rel=0.1)


def test_a_round_of_many_drafts_is_not_taken_for_a_stall(time):
    """It takes longer than plain decoding, as it has to."""
    prices = RoundPrices("cpu", measured(time, a_token_s=1e-3))
    for _ in range(200):
        prices.begin(1)
        prices.launch(9)
        time.now_s += 11e-3
        prices.observe(3)
    prices.begin(1)
    assert prices.worth.tokens_per_s == pytest.approx(3 / 11e-3, rel=0.1)
