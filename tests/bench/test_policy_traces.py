"""Policies over stated traces: what the barrier keeps of plain decoding, and what it loses."""

import re

import msgspec
import numpy as np
import pytest

from bench.policy_traces import GOAL, POLICIES, Results, drawn, main, play
from bench.stated_traces import ADVERSE, ALTERNATING, COST_TABLES, STATIONARY, TRACES, steps_of
from bench.writing import REPORT_FILE, RESULTS_FILE
from target_node.planning.policies import EXACT_FOR, policy_named


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[Results, str]:
    """Of all traces and tables, in small."""
    out = tmp_path_factory.mktemp("traces")
    assert main(["--rounds", "120", "--out", str(out)]) == 0
    results = msgspec.json.decode((out / RESULTS_FILE).read_bytes(), type=Results)
    return results, (out / REPORT_FILE).read_text(encoding="utf-8")


def test_every_trace_meets_every_table_and_policy(found):
    results, report = found
    assert len(results.cells) == len(TRACES) * len(COST_TABLES) * len(POLICIES)
    assert set(POLICIES) == set(EXACT_FOR) - {"threshold"}  # which knows no costs
    for name in (*TRACES, *COST_TABLES):
        assert f"*{name}*" in report


@pytest.mark.parametrize("name", list(STATIONARY))
def test_the_barrier_keeps_plain_decoding_over_a_stationary_trace(name):
    rounds = drawn(TRACES[name], 1500, seed=7)
    for table in COST_TABLES.values():
        steps = steps_of(table)
        plain, barrier = (
            play(rounds, steps, each).rate for each in (None, policy_named("barrier"))
        )
        assert barrier.value >= GOAL * plain.value


def test_the_goal_is_told_of_the_slowest_stationary_trace(found):
    results, report = found
    cells = results.barrier(list(STATIONARY))
    assert len(cells) == len(STATIONARY) * len(COST_TABLES)
    least = cells[0]
    assert f"stationary traces: at least {least.over_plain.value:.3f} " in report
    assert f"({least.trace}, {least.table}); goal 0.99: " in report


def test_what_the_barrier_loses_where_two_rounds_before_is_the_contrary_is_told(found):
    results, report = found
    (worst, *_) = results.barrier([ALTERNATING])
    assert worst.over_plain.value < 0.8
    assert f"barrier, alternating: loses {1 - worst.over_plain.value:.1%}" in report
    others = {c.policy: c for c in results.cells if c.trace == ALTERNATING and c.table == "line"}
    assert others["causal"].over_plain.value > 1.5  # which looks at the round itself
    assert all(f"barrier, {name}: " in report for name in ADVERSE)


def test_two_rounds_before_is_always_the_other_way():
    confidences = drawn(TRACES[ALTERNATING], 400, seed=1).survivals[:, :, 0].mean(axis=1)
    is_good = confidences > 0.5
    assert (is_good[2:] != is_good[:-2]).all()


@pytest.mark.parametrize("name", list(STATIONARY))
def test_no_round_knows_its_number_where_a_trace_is_stationary(name):
    trace = STATIONARY[name]
    first, later = (
        trace.draw(np.random.default_rng(3), number, trace.num_rows) for number in (0, 17)
    )
    assert (first == later).all()
    assert ((first >= 0) & (first <= 1)).all()


def test_tokens_stand_as_likely_as_policies_are_told():
    rounds = drawn(TRACES["two kinds"], 2000, seed=2)
    told = rounds.survivals.sum(axis=2).mean(axis=0)
    assert rounds.num_standing.mean(axis=0) == pytest.approx(told, rel=0.05)


def test_time_and_tokens_are_those_of_the_table_and_of_what_stands():
    rounds = drawn(TRACES["uneven"], 80, seed=4)
    steps = steps_of(COST_TABLES["buckets"])
    plain, everything = play(rounds, steps, None), play(rounds, steps, policy_named("fixed"))
    assert plain.tokens == [8] * 80
    assert plain.seconds == pytest.approx([0.01] * 80)  # 8 ms, and .25 for each of eight tokens
    assert everything.tokens == (8 + rounds.num_standing.sum(axis=1)).tolist()
    assert everything.seconds == pytest.approx([0.024] * 80)  # 64 tokens
    padded = steps.at(1, 0).seconds(np.array([9, 16, 17]))
    assert padded == pytest.approx([0.012, 0.012, 0.014])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rounds", "79"], "--rounds: 79 is less than 80"),
        (["--seed", "-1"], "--seed: -1 is less than 0"),
    ],
)
def test_what_cannot_be_played_is_one_line(capsys, tmp_path, words, problem):
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert problem in capsys.readouterr().err


def test_the_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert re.search(r"python -m bench.policy_traces --traces alternating", told)
