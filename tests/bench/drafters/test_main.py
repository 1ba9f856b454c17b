"""The whole bench of drafters, as small as it gets: the real engine on the embedded target."""

import json

import msgspec
import pytest

from bench import domains
from bench.drafters import __main__ as command
from bench.drafters.__main__ import build_parser, main, read_plan
from specserve.errors import InvalidField
from tests.specserve.drafters.checkpoints import DFLASH, DSPARK, write_drafter
from tests.specserve.drafters.made_for_embedded import embedded_shape

TINY = ["--quick", "--target", "tiny", "--num-prompts", "2", "--candidates", "2"]
TINY += ["--max-tokens", "12", "--gammas", "2", "--thresholds", "0.4"]


@pytest.mark.slow
def test_a_minimal_run_with_prompt_lookup_writes_results_report_and_plots(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(domains, "MIN_DISTINCT", 0.0)  # any greedy text will do
    monkeypatch.setattr(
        command, "QUICK", msgspec.structs.replace(command.QUICK, min_greedy_prompts=2)
    )
    assert main([*TINY, "--drafter", "ngram", "--domains", "code", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    samplings = {
        (c["condition"]["temperature"], c["condition"]["method"]) for c in results["cells"]
    }
    assert samplings == {(1.0, "foreseeable"), (1.0, "coupled"), (0.0, "foreseeable")}
    assert all(c["accept_len"]["value"] >= 1 for c in results["cells"])
    assert [c["condition"]["max_verify_len"] for c in results["gamma_sweep"]] == [2, 7]
    assert results["threshold_sweep"] == []  # prompt lookup has no confidences
    assert results["summary"]["dspark_over_dflash"] is None
    assert results["greedy"] == [{"domain": "code", "num_candidates": 2, "qualifying": [0, 1]}]
    assert "no ballast" in (tmp_path / "report.md").read_text()
    plots = {path.name for path in tmp_path.glob("*.png")}
    assert plots == {"accept_len.png", "conditional.png", "gamma.png"}
    assert "Conditional acceptance" in capfd.readouterr().out


@pytest.mark.slow
def test_trained_or_not_dspark_is_compared_with_dflash_and_its_confidences_judged(tmp_path):
    dspark = write_drafter(tmp_path / "a", DSPARK, **embedded_shape())
    dflash = write_drafter(tmp_path / "b", DFLASH, **embedded_shape())
    words = [*TINY, "--domains", "prose", "--out", str(tmp_path / "out")]
    words += ["--drafter", f"dspark={dspark}", f"dflash={dflash}", "--gamma", "4"]
    assert main([*words, "--depth-drafters", f"1={dspark}"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {c["condition"]["temperature"] for c in results["cells"]} == {1.0}
    assert "no, fewer than 10" in (tmp_path / "out" / "report.md").read_text()  # greedy prompts
    summary = results["summary"]
    assert 0 < summary["dspark_over_dflash_lo"] <= summary["dspark_over_dflash"]
    assert summary["dspark_over_dflash"] <= summary["dspark_over_dflash_hi"]
    assert 0 < summary["ece_before"] < 1
    assert summary["ece_after"] is None  # nothing is calibrated
    [depth] = results["depth_sweep"]
    first = next(c for c in results["cells"] if c["drafter"] == "dspark")
    assert depth["accept_len"] == first["accept_len"]  # the same drafter under another label
    swept = {c["condition"]["min_survival"] for c in results["threshold_sweep"]}
    assert swept == {0.0, 0.4}
    verified = [c["verified_len"]["value"] for c in results["threshold_sweep"]]
    assert verified[0] == 4.0
    assert verified[1] < 4.0
    assert (tmp_path / "out" / "threshold_dspark.png").exists()


@pytest.mark.slow
def test_the_depth_sweep_alone_measures_nothing_else_and_says_how_long_training_was(tmp_path):
    shallow = write_drafter(tmp_path / "a", DSPARK, **embedded_shape())
    deep = write_drafter(tmp_path / "b", DSPARK, **embedded_shape() | {"num_hidden_layers": 2})
    (shallow / "held_out.json").write_text('{"training": {"steps": 7, "tokens": 14000}}')
    words = [*TINY, "--domains", "prose", "--depth-only", "--out", str(tmp_path / "out")]
    assert main([*words, "--depth-drafters", f"2={deep}", f"1={shallow}"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["cells"] == results["greedy"] == results["calibration"] == []
    assert [c["drafter"] for c in results["depth_sweep"]] == ["1", "2"]
    assert {(r["over"], r["under"]) for r in results["depth_ratios"]} == {("2", "1")}
    assert "7 steps" in (tmp_path / "out" / "report.md").read_text()
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == {"depth.png"}


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--max-tokens", "8"], "--max-tokens"),
        (["--num-prompts", "0"], "--num-prompts"),
        (["--num-prompts", "9", "--candidates", "5"], "--candidates"),
    ],
)
def test_a_senseless_flag_is_named(flags, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(flags))


@pytest.mark.slow
def test_prompts_that_others_know_are_asked_in_both_turns_and_loops_are_told(tmp_path):
    words = [*TINY, "--drafter", "ngram", "--categories", "writing", "qa", "--max-tokens", "40"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert {c["condition"]["domain"] for c in results["cells"]} == {"standard"}
    assert {c["condition"]["temperature"] for c in results["cells"]} == {0.0, 1.0}
    assert {c["accept_len"]["num_prompts"] for c in results["cells"]} == {3}
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
