"""The whole bench of modes, as small as it gets: real services and a real client."""

import json

import msgspec
import pytest

from bench import domains
from bench.regimes import __main__ as command
from bench.regimes.__main__ import build_parser, main, read_drafters, read_plan
from bench.regimes.measure import Interleaved
from specserve.errors import InvalidField
from specserve.settings.target_source import EMBEDDED_TARGET

TINY = (
    "--quick --unpinned --target tiny --ballast none --batch-sizes 1 --num-prompts 2 "
    "--max-tokens 12 --domains code"
)


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch):
    """What services learn meanwhile makes them faster, which nobody asks of these runs."""
    plan = msgspec.structs.replace(command.QUICK, warm_up_s=1.0)
    monkeypatch.setattr(command, "QUICK", plan)


@pytest.fixture
def any_greedy_text_will_do(monkeypatch):
    monkeypatch.setattr(domains, "MIN_DISTINCT", 0.0)
    changes = {"min_greedy_prompts": 2, "num_candidates": 2, "num_more_candidates": 0}
    plan = msgspec.structs.replace(command.QUICK, **changes)
    monkeypatch.setattr(command, "QUICK", plan)


@pytest.mark.slow
def test_a_minimal_run_measures_all_modes_and_writes_results_report_and_plots(
    tmp_path, capfd, any_greedy_text_will_do
):
    words = [*TINY.split(), "--arms", "sync-lm", "async-lm", "auto"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["is_complete"]
    by_sampling = {
        t: {(row["arm"], row["method"]): row for row in results["rows"]
            if row["setting"]["temperature"] == t}
        for t in (0.0, 1.0)
    }  # fmt: skip
    drafter = next(row["arm"] for row in results["rows"] if row["mode"] == "async")
    assert by_sampling[0.0].keys() == {
        ("off", "any"), ("sync lm", "any"), (drafter, "any"), ("auto", "any")
    }  # fmt: skip
    methods = {method for arm, method in by_sampling[1.0] if arm == drafter}
    assert methods == {"coupled", "foreseeable"}
    for row in (*by_sampling[0.0].values(), by_sampling[1.0][drafter, "coupled"]):
        assert row["setting"]["is_looping"] is False
        assert row["equal_texts"] in (None, 1.0)
        assert row["parts"]["target_cpu_ms"] > 0
    own = by_sampling[0.0][drafter, "any"]
    assert 0 <= own["hit_rate"]["value"] <= 1
    assert own["bytes_sent"] > 0
    assert own["parts"]["draft_cpu_ms"] > 0
    assert by_sampling[0.0]["sync lm", "any"]["hit_rate"] is None
    summary = results["summary"]
    assert summary["hit_rate_t0_lo"] <= summary["hit_rate_t0"] <= summary["hit_rate_t0_hi"]
    assert summary["async_over_sync_lm_t0"] > 0
    assert summary["auto_over_best"] > 0
    report = (tmp_path / "report.md").read_text()
    assert "**ballast**" in report
    plots = {path.name for path in tmp_path.glob("*.png")}
    assert "batch_code.png" in plots
    assert all(f"]({name})" in report for name in plots)
    assert "batch 1: a round" in capfd.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_keeps_what_it_has(tmp_path, monkeypatch, any_greedy_text_will_do):
    ask = Interleaved._ask

    def interrupted(self, arm, prompts, setting, number):
        if number == 1:  # the second group
            raise KeyboardInterrupt
        return ask(self, arm, prompts, setting, number)

    monkeypatch.setattr(Interleaved, "_ask", interrupted)
    words = [*TINY.split(), "--arms", "sync-lm", "--temperatures", "1", "--sampling", "top_k=20"]
    assert main([*words, "--out", str(tmp_path)]) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert not results["is_complete"]
    assert {row["num_groups"] for row in results["rows"]} == {1}
    assert {row["arm"] for row in results["rows"]} == {"off", "sync lm"}
    report = (tmp_path / "report.md").read_text()
    assert "stopped before the end" in report
    assert "**top_k 20**" in report
    assert results["plan"]["sampling"] == {"top_k": 20}


@pytest.mark.slow
def test_looping_text_is_measured_for_want_of_other_and_marked(tmp_path, monkeypatch):
    monkeypatch.setattr(domains, "MIN_DISTINCT", 1.1)  # no text is that good
    changes = {"num_candidates": 2, "num_more_candidates": 0}
    monkeypatch.setattr(command, "QUICK", msgspec.structs.replace(command.QUICK, **changes))
    words = [*TINY.split(), "--arms", "sync-lm", "--temperatures", "0", "--kv-dtype", "bfloat16"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(row["setting"]["is_looping"] for row in results["rows"])
    assert results["summary"]["t0_is_looping_text"] == 1.0
    assert (results["served"]["dtype"], results["served"]["kv_dtype"]) == ("float32", "bfloat16")
    report = (tmp_path / "report.md").read_text()
    assert "0 looping" in report
    assert "no, fewer than 10" in report


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--max-tokens", "8"], "--max-tokens"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--domains", "code", "--prompts", "x.jsonl"], "--domains"),
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--temperatures", "-1"], "--temperatures"),
        (["--fan-outs", "0"], "--fan-outs"),
        (["--ballast", "many"], "--ballast"),
        (["--sampling", "temperature=1"], "--sampling"),
        (["--sampling", "top_p=much"], "--sampling"),
    ],
)
def test_a_senseless_flag_is_named(flags, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(flags))


def test_asking_for_batch_sizes_asks_for_them_everywhere():
    plan = read_plan(build_parser().parse_args(["--quick", "--batch-sizes", "8", "2"]))
    assert plan.batch_sizes == plan.side_batch_sizes == (2, 8)


def test_a_drafter_can_stand_in_for_an_embedded_one():
    assert read_drafters(["dspark=./mine"], EMBEDDED_TARGET)["dspark"].drafter == "./mine"
    with pytest.raises(InvalidField, match="--drafter"):
        read_drafters(["mine=./mine"], EMBEDDED_TARGET)


def test_a_target_without_drafters_of_its_own_has_prompt_lookup(tmp_path):
    assert read_drafters([], tmp_path).keys() == {"ngram"}
    assert read_drafters(["lm=smollm2"], tmp_path).keys() == {"lm"}
    assert {"dspark", "lm"} <= read_drafters([], EMBEDDED_TARGET).keys()


@pytest.mark.slow
def test_prompts_that_others_know_are_asked_in_both_turns_and_loops_are_told(tmp_path):
    words = [*TINY.split()[:-2], "--arms", "sync-ngram", "--drafter", "ngram"]
    words += ["--temperatures", "0", "--categories", "writing", "qa", "--max-tokens", "40"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["setting"]["domain"] for row in results["rows"]} == {"standard"}
    assert {row["num_groups"] for row in results["rows"]} == {3}
    assert "1 of them second turns" in results["prompts"]
    assert results["greedy"] == []
    assert results["loops"]["num_answers"] == 3
    assert results["plan"]["ignore_eos"] is False
    report = (tmp_path / "report.md").read_text()
    assert f"{results['loops']['num_looping']} of 3 greedy answers loop" in report


def test_prompts_that_are_a_number_are_refused(tmp_path, capfd):
    assert main(["--prompts", "8", "--out", str(tmp_path)]) == 1
    assert "--num-prompts 8" in capfd.readouterr().err


def test_a_drafter_that_is_none_fails_with_one_line(capfd):
    assert main(["--drafter", "dspark=/nonexistent/folder"]) == 1
    assert "speculation.drafter" in capfd.readouterr().err
