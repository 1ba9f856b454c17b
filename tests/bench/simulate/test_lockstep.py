"""SSD's own engine, simulated, against what the paper derives for it."""

from dataclasses import replace

import pytest

from bench.simulate.lockstep import Lockstep, run, synchronous
from bench.simulate.step_models import chains
from bench.simulate.texts import RankLaw
from bench.ssd_formulas import batch_speedup, expected_tokens, hit_rate, speedup
from tests.bench.simulate.settings import FORWARD_S, free_tokens

ALWAYS_85 = RankLaw(missed=0.15, power=0.0)


def engine(**more) -> Lockstep:
    """Drafting a token takes a twentieth of a forward, of however many rows."""
    token_s = 0.05 * FORWARD_S
    times = chains({1: (0.0, token_s), 4096: (0.0, token_s)})
    usual = {"recovery": ALWAYS_85, "bonus": ALWAYS_85, "fan_out": 1}
    return Lockstep(free_tokens(), times, 0.8, **usual | more)


def test_a_late_tree_is_waited_for():
    found = run(engine(extra_passes=23), num_rounds=4_000)  # thirty passes: half as long again
    length = expected_tokens(0.8, 7)
    # A round that missed has waited for the tree as well before the backup begins.
    expected = speedup(0.85, length, length, draft_time=1.5, backup_time=0.5 + 0.35)
    assert found.over_plain == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("num_rows", [1, 4, 16])
def test_batches_that_wait_for_the_backup_are_as_fast_as_corollary_16_says(num_rows):
    found = run(engine(num_rows=num_rows), num_rounds=4_000 // num_rows)
    length = expected_tokens(0.8, 7)  # all blocks are drafted again, so that all make as many
    expected = batch_speedup(num_rows, 0.85, length, length, 0.35)
    assert found.over_plain == pytest.approx(expected, rel=0.03)
    assert found.hit_rate == pytest.approx(0.85, abs=0.015)


def test_random_tokens_take_no_time_and_bring_none():
    laws = {"backup": "random", "after_miss": RankLaw(0.4, 0.0)}
    found = run(engine(**laws), num_rounds=4_000)
    share = hit_rate(0.85, 0.6)
    assert found.hit_rate == pytest.approx(share, abs=0.015)
    expected = speedup(share, expected_tokens(0.8, 7), 1.0, draft_time=0.4, backup_time=0.0)
    assert found.over_plain == pytest.approx(expected, rel=0.03)


def test_dividing_outcomes_by_chance_hits_more_than_as_many_for_each_prefix():
    laws = {"recovery": RankLaw(0.5, 1.0), "bonus": RankLaw(0.5, 1.0), "fan_out": 3}
    divided, even = (
        run(replace(engine(**laws), divides=divides, accept=0.6), num_rounds=4_000)
        for divides in (True, False)
    )
    assert divided.hit_rate > even.hit_rate + 0.01


def test_a_synchronous_round_is_the_formulas():
    found = synchronous(engine(), chains({1: (0.0, 0.1 * FORWARD_S)}), 5)
    assert found * FORWARD_S == pytest.approx(expected_tokens(0.8, 5) / 1.5)
