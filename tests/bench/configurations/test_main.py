"""The whole bench of configurations, as small as it gets: real services and a real client."""

import json

import pytest

from bench.configurations.__main__ import build_parser, main, read_plan
from bench.configurations.run import Run
from specserve.errors import InvalidField

TINY = [
    "--quick",
    "--unpinned",
    "--target",
    "tiny",
    "--ballast",
    "none",
    "--max-tokens",
    "12",
    "--num-prompts",
    "2",
]
TINY += ["--categories", "writing", "qa"]
ARMS = ["--arm", "sync: --speculation sync"]
ARMS += ["--arm", "async: --speculation async --topology 1+1 --gamma 4"]


@pytest.mark.slow
def test_a_minimal_run_compares_the_arms_on_both_turns(tmp_path, capfd):
    assert main([*TINY, *ARMS, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["is_complete"]
    asked = results["questions"]["asked"]
    assert sorted((q["category"], q["turn"]) for q in asked) == [
        ("qa", 0), ("writing", 0), ("writing", 1),
    ]  # fmt: skip
    rows = {
        (each["row"]["arm"], each["row"]["method"], each["row"]["setting"]["temperature"]): each
        for each in results["arms"]
    }
    assert rows.keys() == {
        ("plain", "any", 0.0), ("sync", "any", 0.0), ("async", "any", 0.0), ("plain", "any", 1.0),
        *((arm, method, 1.0) for arm in ("sync", "async") for method in ("coupled", "foreseeable")),
    }  # fmt: skip
    for (arm, method, temperature), each in rows.items():
        assert each["row"]["num_groups"] == 3
        if arm != "plain" and (temperature == 0 or method == "coupled"):
            assert each["row"]["equal_texts"] == 1.0
    own = rows["async", "any", 0.0]
    assert own["over_best_sync"]["value"] > 0
    assert own["best_sync"] == "sync"
    assert own["row"]["parts"]["verify_ms"] > 0
    assert 0 <= own["row"]["hit_rate"]["value"] <= 1
    assert own["row"]["predicted"] > 0
    assert results["loops"]["num_answers"] == 3
    assert results["summary"]["async_over_best_sync_t0"] > 0
    assert "async_over_best_sync_t1" in results["summary"]
    report = (tmp_path / "report.md").read_text()
    assert "of 3 greedy answers loop" in report
    assert "Theorem 7" in report
    assert "1 of them second turns" in report
    assert "Temperature 1" in capfd.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_keeps_its_whole_passes(tmp_path, monkeypatch):
    ask_all = Run._ask_all
    calls = []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) > 2:  # in the second pass
            raise KeyboardInterrupt
        ask_all(self, *arguments)

    monkeypatch.setattr(Run, "_ask_all", interrupted)
    words = [*TINY, *ARMS[:2], "--temperatures", "0", "--passes", "3", "--out", str(tmp_path)]
    assert main(words) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert not results["is_complete"]
    assert {each["row"]["num_groups"] for each in results["arms"]} == {1}
    assert "stopped before the end" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--max-tokens", "3"], "--max-tokens"),
        (["--temperatures", "-1"], "--temperatures"),
        (["--passes", "0"], "--passes"),
        (["--sampling", "temperature=1"], "--sampling"),
        (["--sampling", "top_p=much"], "--sampling"),
    ],
)
def test_a_senseless_flag_is_named(words, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(words))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--prompts", "8"], "--num-prompts 8"),
        (["--ballast", "many"], "--ballast"),
        (["--arm", "x"], "NAME: FLAGS"),
        (["--arm", "x: --speculation fast"], "speculation.mode"),
        (["--target", "/nonexistent/folder"], "model.target"),
    ],
)
def test_what_cannot_be_measured_fails_with_one_line(tmp_path, capfd, words, problem):
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    said = capfd.readouterr().err
    assert problem in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()
