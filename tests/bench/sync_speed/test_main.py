"""The whole bench of synchronous speculation, as small as it gets: real engines, pinned child."""

import json

import msgspec
import pytest

from bench import domains
from bench.sync_speed import __main__ as command
from bench.sync_speed.__main__ import build_parser, main, read_plan
from specserve.errors import InvalidField


@pytest.mark.slow
def test_a_minimal_run_with_prompt_lookup_writes_results_report_and_plot(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(domains, "MIN_DISTINCT", 0.0)  # any greedy text will do
    plan = msgspec.structs.replace(command.QUICK, min_greedy_prompts=2, num_candidates=2)
    monkeypatch.setattr(command, "QUICK", plan)
    words = "--quick --target tiny --drafter ngram --ballast none --num-prompts 2 --max-tokens 10"
    assert main([*words.split(), "--domains", "code", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    by_temperature = [
        {row["method"]: row for row in results["rows"] if row["setting"]["temperature"] == t}
        for t in (1.0, 0.0)
    ]
    rows = by_temperature[0]
    assert rows.keys() == {"any", "coupled", "foreseeable", "rejection"}
    assert rows["any"]["drafter"] == "plain"
    assert rows["any"]["accept_len"]["value"] == 1.0
    assert rows["coupled"]["equal_texts"] == 1.0
    for method in ("coupled", "foreseeable", "rejection"):
        row = rows[method]
        assert row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"]
        assert row["round"]["verify_ms"] > 0
        assert results["summary"][f"ngram_code_t1_{method}_none"] == row["ratio"]["value"]
    greedy = by_temperature[1]["any"]  # plain decoding comes first, so this is the drafter
    assert (greedy["drafter"], greedy["equal_texts"]) == ("ngram", 1.0)
    assert (tmp_path / "speed.png").exists()
    assert "T_verify" in (tmp_path / "report.md").read_text()
    assert "batch 1: a round" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--max-tokens", "8"], "--max-tokens"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--ballast", "many"], "--ballast"),
    ],
)
def test_a_senseless_flag_is_named(flags, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(flags))


@pytest.mark.slow
def test_prompts_that_others_know_are_asked_in_both_turns_and_loops_are_told(tmp_path):
    words = "--quick --target tiny --drafter ngram --ballast none --num-prompts 2 --max-tokens 40"
    words += " --categories writing qa"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["setting"]["domain"] for row in results["rows"]} == {"standard"}
    assert {row["num_groups"] for row in results["rows"]} == {3}
    assert all(row["equal_texts"] in (None, 1.0) for row in results["rows"])
    assert results["loops"]["num_answers"] == 3
    report = (tmp_path / "report.md").read_text()
    assert "1 of them second turns" in report
    assert f"{results['loops']['num_looping']} of 3 greedy answers loop" in report


def test_prompts_that_are_a_number_are_refused(tmp_path, capfd):
    assert main(["--prompts", "8", "--out", str(tmp_path)]) == 1
    assert "--num-prompts 8" in capfd.readouterr().err


def test_a_drafter_that_is_none_fails_with_one_line(capfd):
    assert main(["--drafter", "/nonexistent/folder"]) == 1
    assert "speculation.drafter" in capfd.readouterr().err
