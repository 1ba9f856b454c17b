"""What asynchronous arms are held against."""

import pytest

from bench.configurations.arms import read_arms
from bench.configurations.results import GOALS, arm_rows, summarise
from bench.configurations.rows import Group, Setting, loops_in
from bench.services.service import Arm
from tests.bench.services.traces import trace

WORDS = (
    "plain: --speculation off",
    "slow: --speculation sync --gamma 2",
    "fast: --speculation sync",
    "both: --speculation sync --threads 2",
    "async: --speculation async --topology 1+1",
)
PLAIN, SLOW, FAST, BOTH, ASYNC = (Arm(service=s) for s in read_arms(WORDS, [], "lm"))
AT_0 = Setting(ballast="1B", domain="standard", temperature=0.0)


def group(number: int) -> Group:
    """Tokens a second: 10, 12, 15, 24 and 20."""
    counters = {"num_decode_rounds": 4.0, "forward_s": 0.4, "draft_s": 0.04, "wait_s": 0.0}
    counters |= {"num_waves": 8.0, "num_late_waves": 2.0, "wave_s": 0.2, "num_rounds": 4.0}
    traces = {
        PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False),
        SLOW: trace([3] * 4, round_s=0.25),
        FAST: trace([3] * 4, round_s=0.2),
        BOTH: trace([3] * 4, round_s=0.125),
        ASYNC: trace([4, 2, 2, 4], round_s=0.15, hits=[True, False, True, True], counters=counters),
    }
    return Group(number, traces)


FOUND = {AT_0: [group(number) for number in range(4)]}


def test_an_asynchronous_arm_is_held_against_the_best_on_one_core_and_on_as_many():
    rows = {each.row.arm: each for each in arm_rows(FOUND)}
    own = rows["async"]
    assert own.over_best_sync is not None
    assert own.over_best_sync.value == pytest.approx(20 / 15)
    assert own.best_sync == "fast"
    assert own.over_equal_cores is not None
    assert own.over_equal_cores.value == pytest.approx(20 / 24)
    assert own.equal_cores == "both"
    assert own.row.late_drafts == pytest.approx(0.25)
    assert own.row.parts is not None
    assert own.row.parts.draft_node_ms == pytest.approx(50.0)
    assert own.mean_answer_len == 13
    assert "--speculation async" in own.flags
    for name in ("plain", "slow", "fast", "both"):
        assert rows[name].over_best_sync is rows[name].over_equal_cores is None


def test_the_summary_has_the_goals_figures_and_every_speed():
    summary = summarise(FOUND)
    assert summary["async_over_best_sync_t0"] == pytest.approx(20 / 15, abs=1e-3)
    assert summary["async_over_equal_cores_t0"] == pytest.approx(20 / 24, abs=1e-3)
    assert summary["tok/s plain t0"] == pytest.approx(10)
    assert {f"{GOALS[0].key}{end}" for end in ("", "_lo", "_hi")} <= summary.keys()
    assert GOALS[1].key not in summary


def test_without_a_synchronous_arm_there_is_no_ratio():
    only = {arm: FOUND[AT_0][0].traces[arm] for arm in (PLAIN, ASYNC)}
    found = {AT_0: [Group(0, only)]}
    assert summarise(found)["async_over_best_sync_t0"] is None
    assert all(each.over_best_sync is None for each in arm_rows(found))


def test_loops_are_counted_in_plain_greedy_answers_alone():
    count = loops_in(FOUND)
    assert count is not None
    assert (count.num_looping, count.num_answers) == (0, 4)
    assert loops_in({}) is None
