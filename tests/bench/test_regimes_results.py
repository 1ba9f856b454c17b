"""What traces of modes are summed up to."""

import msgspec
import pytest

from bench.regimes.measure import Group
from bench.regimes.results import quiet, rows_of
from bench.regimes.summary import GOALS, compare, summarise, verdict_on
from specserve.sampling.verification.method import VerificationMethod
from tests.bench.regimes_traces import (
    ASYNC_FORESEEABLE,
    ASYNC_LM,
    AT_0,
    AT_1,
    AUTO_LM,
    PLAIN,
    SYNC_LM,
    group,
    trace,
)

NUM_TOKENS = 13


def rows(groups: list[Group], setting=AT_1):
    return {(row.arm, row.method): row for row in rows_of(setting, groups, NUM_TOKENS)}


def test_rates_are_those_of_decoding_rounds_and_ratios_pair_the_groups():
    found = rows([group(0), group(1), group(2)])
    plain, sync = found["off", "any"], found["sync lm", "coupled"]
    own = found["async lm", "coupled"]
    assert plain.tokens_per_s.value == pytest.approx(10.0)
    assert plain.ratio_to_off is None
    assert plain.ratio_to_sync is None
    assert sync.ratio_to_off.value == pytest.approx(1.2)
    assert own.tokens_per_s.value == pytest.approx(15.0)
    assert (own.ratio_to_off.low, own.ratio_to_off.high) == pytest.approx((1.5, 1.5))
    assert own.ratio_to_sync.value == pytest.approx(1.25)
    assert own.equal_len_to_sync == pytest.approx(1.25)  # a round of 0.2 s against 0.25 s
    assert own.accept_len.value == pytest.approx(3.0)
    assert own.parts.round_ms == pytest.approx(200.0)


def test_hits_are_counted_among_look_ups_and_tell_lengths_apart():
    own = rows([group(0)])["async lm", "coupled"]
    assert own.hit_rate.value == pytest.approx(0.75)
    assert own.hit_len == pytest.approx(11 / 3)
    assert own.miss_len == pytest.approx(1.0)
    assert rows([group(0)])["sync lm", "coupled"].hit_rate is None


def test_a_method_is_compared_with_the_synchronous_arm_of_the_same_method_alone():
    assert rows([group(0)])["async lm", "foreseeable"].ratio_to_sync is None


def test_predicted_speed_comes_from_reported_parts_or_else_from_processor_time():
    by_cpu = rows([group(0)])["sync lm", "coupled"]
    assert by_cpu.predicted == pytest.approx(3.0 / 2.5)
    assert by_cpu.parts.verify_ms is None
    reported = {"num_decode_rounds": 12.0, "forward_s": 1.2, "draft_s": 0.0}
    own = {"num_decode_rounds": 4.0, "forward_s": 0.6, "draft_s": 0.2}
    traces = group(0).traces | {
        PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False, counters=reported),
        SYNC_LM: trace([3, 3, 3, 3], round_s=0.25, counters=own),
    }
    found = rows([Group(0, traces)])["sync lm", "coupled"]
    assert found.parts.verify_ms == pytest.approx(150.0)
    assert found.parts.draft_ms == pytest.approx(50.0)
    assert found.predicted == pytest.approx(3.0 / 2.0)


def test_what_the_service_counts_is_shown_and_the_rest_is_unknown():
    own = {"num_rounds": 5.0, "bytes_sent": 500.0, "num_waves": 8.0, "num_late_waves": 2.0}
    hits = [True, False, True, True]
    traces = group(0).traces | {ASYNC_LM: trace([4, 1, 4, 3], round_s=0.2, hits=hits, counters=own)}
    row = rows([Group(0, traces)])["async lm", "coupled"]
    assert (row.bytes_sent, row.bytes_received, row.late_drafts) == (100.0, None, 0.25)


def test_rounds_by_gap_compare_prepared_blocks_with_those_drafted_afterwards():
    points = {p.gap: p for p in rows([group(0)])["async lm", "coupled"].by_gap}
    # After 1, 4, 1 and 4 tokens came a hit of 4, a miss, a hit of 4 and one too near the end.
    assert points.keys() == {1}
    assert (points[1].accept_len, points[1].num_rounds) == (4.0, 2)
    sync = {p.gap: p for p in rows([group(0)])["sync lm", "coupled"].by_gap}
    assert sync[3].num_rounds == 3


def test_texts_are_compared_where_equality_is_promised():
    found = rows([group(0)])
    assert found["async lm", "coupled"].equal_texts == 1.0
    assert found["async lm", "foreseeable"].equal_texts is None


def test_auto_tells_which_modes_it_ran():
    shares = rows([group(0)])["auto", "coupled"].mode_shares
    assert shares == {"async": 0.5, "off": 0.25, "sync": 0.25}


def test_groups_disturbed_by_others_are_left_out_where_enough_are_quiet():
    groups = [group(n) for n in range(11)] + [group(11, foreign_share=0.9)]
    assert [g.number for g in quiet(groups)] == list(range(11))
    assert rows(groups)["off", "any"].num_disturbed == 1
    assert len(quiet([group(n, foreign_share=0.9) for n in range(3)])) == 3


def test_the_best_of_several_is_picked_on_even_groups_and_compared_on_odd_ones():
    # Coupled looks best on the even group alone; foreseeable is the better one on the odd group.
    lucky = group(0, async_round_s=0.1)
    lucky.traces[ASYNC_FORESEEABLE] = trace([2, 2, 2], round_s=0.2, hits=[True] * 3)
    unlucky = group(1, async_round_s=0.4)
    found = {AT_1: [lucky, unlucky]}
    ratio = compare(found, lambda a: a.service.mode == "async", lambda a: a == SYNC_LM)
    assert ratio is not None
    assert ratio.value == pytest.approx(7.5 / 12)
    only = compare(found, lambda a: a == ASYNC_LM, lambda a: a == SYNC_LM)
    assert only is not None
    assert only.num_prompts == 2  # nothing to pick, so that all groups count


def test_the_summary_has_all_figures_with_their_intervals():
    groups = [group(0), group(1)]
    greedy = [
        Group(g.number, {a: t for a, t in g.traces.items() if a != ASYNC_FORESEEABLE})
        for g in groups
    ]
    prose = msgspec.structs.replace(AT_1, domain="prose")
    summary = summarise({AT_1: groups, prose: groups, AT_0: greedy}, ["30M"])
    assert summary["async_over_sync_lm_t0"] == pytest.approx(1.25)
    assert summary["async_over_sync_lm_t1"] == pytest.approx(20 / 12, abs=1e-3)
    assert summary["hit_rate_t0"] == pytest.approx(0.75)
    assert summary["hit_rate_t1"] == pytest.approx(0.75)
    assert summary["hit_rate_t1_foreseeable"] == 1.0
    assert summary["async_over_sync_dspark_t0"] is None
    assert summary["t0_is_looping_text"] == 0.0
    assert summary["auto_over_best"] == summary["auto_over_best_b1"] == pytest.approx(1.0)
    assert summary["async_over_sync_lm_t0_30M"] == summary["async_over_sync_lm_t0"]
    for goal in GOALS:
        assert {goal.key, f"{goal.key}_lo", f"{goal.key}_hi"} <= summary.keys()


def test_a_goal_is_missed_only_by_the_whole_interval():
    goal = next(goal for goal in GOALS if goal.key == "hit_rate_t0")
    assert verdict_on(goal, {"hit_rate_t0": 0.8, "hit_rate_t0_hi": 0.89}) == "missed"
    assert verdict_on(goal, {"hit_rate_t0": 0.8, "hit_rate_t0_hi": 0.95}).startswith("open")
    assert verdict_on(goal, {"hit_rate_t0": 0.93, "hit_rate_t0_hi": 0.95}) == "reached"
    assert verdict_on(goal, {"hit_rate_t0": None, "hit_rate_t0_hi": None}) == "not measured"


def test_looping_text_counts_only_where_there_is_no_other():
    looping = msgspec.structs.replace(AT_0, domain="prose", is_looping=True)
    both = {AT_0: [group(0)], looping: [group(0, async_round_s=0.1)]}
    assert summarise(both, ["30M"])["async_over_sync_lm_t0"] is not None
    assert summarise(both, ["30M"])["t0_is_looping_text"] == 0.0
    assert summarise({looping: [group(0)]}, ["30M"])["t0_is_looping_text"] == 1.0


def test_nothing_measured_gives_no_rows_and_a_summary_of_unknowns():
    assert rows_of(AT_0, [], NUM_TOKENS) == []
    assert summarise({AT_0: []}, ["30M"])["async_over_sync_lm"] is None


def test_methods_on_the_same_prompts_make_auto_no_more_certain():
    def groups(*others):
        """`auto` is by 1 to 1.5 as fast as the rest, under every method."""
        return [
            Group(
                number,
                {
                    PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False),
                    SYNC_LM: trace([1] * 12, round_s=0.11),
                    AUTO_LM: trace([1] * 12, round_s=0.1 / (1 + number % 6 / 10)),
                    **{arm: trace([1] * 12, round_s=0.1 / (1 + number % 6 / 10)) for arm in others},
                },
            )
            for number in range(12)
        ]

    unseeded = [
        msgspec.structs.replace(AUTO_LM, method=method)
        for method in VerificationMethod
        if method is not VerificationMethod.COUPLED
    ]
    one = summarise({AT_1: groups()}, ["30M"])
    three = summarise({AT_1: groups(*unseeded)}, ["30M"])
    for key in ("auto_over_best", "auto_over_best_lo", "auto_over_best_hi"):
        assert three[key] == pytest.approx(one[key])
