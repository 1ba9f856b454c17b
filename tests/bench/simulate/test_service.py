"""Simulated services against closed forms, where there are some."""

from dataclasses import replace

import pytest

from bench.simulate.service import simulate
from bench.simulate.setting import Drafters, Requests, Topology
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import RankLaw, Texts
from bench.ssd_formulas import expected_tokens, speedup, synchronous_speedup
from specserve.errors import InvalidField
from tests.bench.simulate.settings import ALWAYS, FORWARD_S, NEVER, free_tokens, setting

PLAIN = 1 / FORWARD_S  # tokens a second
TOKENS = 1600  # hundreds of rounds: a mean length is known to some four in a hundred


def test_plain_decoding_makes_a_token_a_row_and_forward():
    found = simulate(setting(mode="off", num_at_once=3), tokens_each=100)
    assert found.tokens_per_s == pytest.approx(3 * PLAIN)
    assert found.accept_len == 1
    assert found.shares == {"off": 1.0}


def test_what_is_left_of_a_round_counts_by_rows_and_by_drafts():
    rests = {"rest_s": 0.001, "row_rest_s": 0.002, "drafted_rest_s": 0.005}
    plain = simulate(replace(setting(mode="off", num_at_once=3), **rests), tokens_each=40)
    assert plain.round_s == pytest.approx(FORWARD_S + 0.001 + 3 * 0.002)
    drafted = simulate(replace(setting(num_at_once=3, draft_s=0.004), **rests), tokens_each=40)
    assert drafted.round_s == pytest.approx(plain.round_s + 0.004 + 0.005, rel=0.01)


@pytest.mark.parametrize(("accept", "gamma"), [(0.3, 5), (0.7, 1), (0.9, 5)])
def test_a_fixed_acceptance_makes_the_tokens_of_the_closed_form(accept, gamma):
    found = simulate(setting(accept, gamma=gamma), tokens_each=TOKENS)
    assert found.accept_len == pytest.approx(expected_tokens(accept, gamma), rel=0.05)


def test_acceptance_by_position_makes_the_sum_of_its_products():
    found = simulate(setting((0.9, 0.5, 0.2), gamma=4), tokens_each=TOKENS)
    expected = 1 + 0.9 + 0.9 * 0.5 + 0.9 * 0.5 * 0.2 + 0.9 * 0.5 * 0.2 * 0.2
    assert found.accept_len == pytest.approx(expected, rel=0.05)


def test_synchronous_speed_is_the_formulas():
    found = simulate(setting(0.8, draft_s=0.3 * FORWARD_S), tokens_each=TOKENS)
    expected = synchronous_speedup(expected_tokens(0.8, 5), 0.3)
    assert found.tokens_per_s / PLAIN == pytest.approx(expected, rel=0.05)
    assert found.round_s == pytest.approx(1.3 * FORWARD_S, rel=0.005)  # an answer's last is plain


def asynchronous(**more):
    """Without a drafter beside the target: who misses decodes plainly."""
    return setting(
        **{"mode": "async", "processes": 1, "miss_policy": "skip", "draft_s": None} | more
    )


def test_a_draft_that_takes_no_time_and_knows_what_follows_is_never_waited_for():
    found = simulate(asynchronous(accept=0.8, process_s=1e-7), tokens_each=TOKENS)
    assert found.hit_rate > 0.99
    assert found.tokens_per_s / PLAIN == pytest.approx(expected_tokens(0.8, 5), rel=0.05)


def test_a_draft_that_takes_longer_than_a_forward_is_worth_nothing():
    found = simulate(asynchronous(accept=0.8, process_s=1.5 * FORWARD_S), tokens_each=500)
    assert found.hit_rate < 0.05
    assert found.tokens_per_s == pytest.approx(PLAIN, rel=0.05)


def test_hits_and_lengths_make_the_speed_of_theorem_7():
    """Half of all outcomes are guessed; misses decode plainly and take no longer."""
    ranks = RankLaw(missed=0.5, power=0.0)
    found = simulate(asynchronous(accept=0.8, process_s=1e-7, ranks=ranks), tokens_each=3 * TOKENS)
    assert found.hit_rate == pytest.approx(0.5, abs=0.04)
    expected = speedup(0.5, expected_tokens(0.8, 5), 1.0, draft_time=0.5, backup_time=0.0)
    assert found.tokens_per_s / PLAIN == pytest.approx(expected, rel=0.05)


def test_what_is_never_guessed_is_never_hit():
    found = simulate(asynchronous(process_s=1e-7, ranks=NEVER), tokens_each=300)
    assert found.hit_rate == 0
    assert found.accept_len == 1


def test_a_link_as_slow_as_a_forward_lets_nothing_be_in_time():
    slow = asynchronous(process_s=1e-7)
    drafters = replace(slow.drafters, link_s=FORWARD_S)
    assert simulate(replace(slow, drafters=drafters), tokens_each=300).hit_rate == 0


def test_a_target_that_waits_drafts_in_the_process_where_all_rows_missed():
    """It takes the draft's time, as synchronously."""
    waits = asynchronous(accept=0.8, process_s=0.004, ranks=NEVER, miss_policy="draft_now")
    found = simulate(waits, tokens_each=TOKENS)
    expected = synchronous_speedup(expected_tokens(0.8, 5), 0.4)
    assert found.tokens_per_s / PLAIN == pytest.approx(expected, rel=0.05)


def test_who_misses_may_be_drafted_for_beside_the_target():
    here = asynchronous(
        accept=0.8, process_s=1e-7, draft_s=0.004, ranks=NEVER, miss_policy="local_draft"
    )
    found = simulate(here, tokens_each=TOKENS)
    # The last token of a block stays behind.
    expected = synchronous_speedup(expected_tokens(0.8, 4), 0.4)
    assert found.tokens_per_s / PLAIN == pytest.approx(expected, rel=0.05)


def test_a_busy_neighbour_makes_forwards_longer():
    alone = simulate(asynchronous(process_s=1e-7), tokens_each=300)
    beside = simulate(asynchronous(process_s=1e-7, slower=1.25), tokens_each=300)
    assert alone.round_s == pytest.approx(FORWARD_S)
    assert beside.round_s == pytest.approx(1.25 * FORWARD_S)


def test_more_processes_prepare_more_of_many_rows():
    """One process has time for three outcomes of each of 64 rows."""
    ranks = RankLaw(missed=0.6, power=1.0)
    shared = {"num_at_once": 64, "ranks": ranks, "process_s": 0.3 * FORWARD_S}
    rates = [
        simulate(asynchronous(processes=count, **shared), tokens_each=100).hit_rate
        for count in (1, 4)
    ]
    assert rates[1] > rates[0] + 0.1


def test_several_targets_share_a_process():
    """Of as many targets as keep it busy each has fewer hits than one alone."""
    alone = asynchronous(process_s=0.3 * FORWARD_S, ranks=RankLaw(0.6, 1.0))
    many = replace(alone, topology=Topology(num_targets=6, num_processes=1))
    found = [simulate(each, tokens_each=200) for each in (alone, many)]
    assert found[1].hit_rate < found[0].hit_rate - 0.1
    assert found[1].tokens_per_s > 3 * found[0].tokens_per_s


def test_the_same_seed_makes_the_same_run():
    several = asynchronous(process_s=0.003, num_at_once=3, ranks=RankLaw(0.4, 1.0), mode="auto")
    first, again = (simulate(several, tokens_each=60) for _ in range(2))
    other = simulate(replace(several, seed=1), tokens_each=60)
    assert first == again
    assert other != first


def _costly(mode, accept, *, num_at_once=1, draft_ms=4.0):
    """Every drafted token takes as much of a forward's time as the service's rows pay for it."""
    times = chains({1: (draft_ms / 1000, 0.0), 64: (4 * draft_ms / 1000, 0.0)})
    return replace(
        setting(accept, mode=mode, processes=1, num_at_once=num_at_once),
        steps=measured_steps({n: 0.010 + 0.001 * n for n in (1, 8, 64, 512)}),
        drafters=Drafters(5, times, times),
        texts=Texts((accept,), recovery=RankLaw(0.3, 1.0), bonus=RankLaw(0.2, 1.0)),
        weighs_costs=True,
        policy="price",
    )


@pytest.mark.parametrize(("accept", "num_at_once"), [(0.1, 1), (0.5, 1), (0.1, 8), (0.85, 8)])
def test_auto_is_never_slower_than_off_by_more_than_trying_costs(accept, num_at_once):
    """Some of the first hundreds of tokens are spent on trying."""
    speeds = {
        mode: simulate(
            _costly(mode, accept, num_at_once=num_at_once), tokens_each=600 // num_at_once
        )
        for mode in ("off", "auto")
    }
    assert speeds["auto"].tokens_per_s > 0.96 * speeds["off"].tokens_per_s


def test_auto_finds_what_is_fastest():
    speeds = {
        mode: simulate(_costly(mode, 0.85), tokens_each=700).tokens_per_s
        for mode in ("off", "sync", "async", "auto")
    }
    assert speeds["async"] > 1.1 * speeds["sync"] > 1.3 * speeds["off"]
    assert speeds["auto"] > 0.95 * speeds["async"]


def test_prompts_that_end_make_room_for_others():
    short = replace(setting(0.9), requests=Requests(4, answer_len=3))
    found = simulate(short, tokens_each=60)
    assert found.accept_len <= 2  # an answer has three tokens, and the first was there


def test_a_mode_that_nobody_drafts_for_is_refused():
    with pytest.raises(InvalidField, match="nobody to draft"):
        simulate(setting(mode="async"))
    with pytest.raises(InvalidField, match="none of off, sync, async, auto"):
        simulate(setting(mode="fast"))


def test_a_run_leaves_the_machines_clock_where_it_was():
    import time

    from target_node.speculation import auto

    simulate(setting(), tokens_each=20)
    assert auto.time is time


def test_forwards_of_free_tokens_take_the_same():
    assert free_tokens().at(4, 100).seconds([1, 99]).tolist() == [FORWARD_S, FORWARD_S]
    assert ALWAYS.hit_rate(1) == 1


@pytest.mark.parametrize("num_at_once", [1, 64])
def test_as_little_as_a_token_each_comes_to_an_end(num_at_once):
    found = simulate(setting(0.8, num_at_once=num_at_once), tokens_each=1)
    assert found.tokens_per_s > 0
    assert found.accept_len >= 1


def test_less_than_a_token_is_refused():
    with pytest.raises(ValueError, match="tokens_each: 0 is below 1"):
        simulate(setting(0.8), tokens_each=0)
