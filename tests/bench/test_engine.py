"""The whole bench of the engine, as small as it gets: real service, real transformers."""

import json

import pytest

from bench.engine import build_parser, main, read_plan
from specserve.errors import InvalidField


@pytest.mark.slow
def test_a_minimal_run_writes_valid_results_and_a_report(tmp_path):
    flags = (
        "--quick --target tiny --ballast none --batch-sizes 2 --num-prompts 2 --max-tokens 96 "
        "--repetitions 1"
    )
    assert main([*flags.split(), "--prefill", "32", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    [row] = results["rows"]
    assert row["batch_size"] == 2
    assert row["ratio_to_transformers"] > 0
    assert row["equal_token_share"] == 1.0  # both arms decode the same text
    assert row["cpu_us_per_token"].keys() == {"api", "client", "target"}
    assert results["overhead"] == row["overhead"]["value"] > 0
    assert results["target"]["ballast_params"] == 0
    assert results["prefill"][0]["prompt_len"] == 32
    assert sum(results["stages_us"]["2"].values()) > 0
    assert results["machine"]["cpu"]
    report = (tmp_path / "report.md").read_text()
    assert "no ballast" in report
    assert "prompts of standard" in report
    assert results["loops"]["num_answers"] >= 2
    assert {path.name for path in tmp_path.glob("*.png")} == {"throughput.png", "stages.png"}


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--threads", "0"], "--threads"),
    ],
)
def test_a_senseless_flag_is_named(flags, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(flags))


def test_prompts_that_are_a_number_are_refused(tmp_path, capfd):
    assert main(["--prompts", "8", "--out", str(tmp_path)]) == 1
    assert "--num-prompts 8" in capfd.readouterr().err


def test_a_target_that_is_none_fails_with_one_line(capfd):
    assert main(["--target", "/nonexistent/folder"]) == 1
    assert "model.target" in capfd.readouterr().err
