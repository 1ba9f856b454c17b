"""The whole bench with real services, as small as it gets: stopped, refused, gone on with."""

import json
from pathlib import Path

import pytest

from bench.sweep import __main__ as command
from bench.sweep import run
from bench.sweep.__main__ import main
from bench.sweep.kept import KEPT_FILE

SMALL = (
    "--target tiny --ballast none --unpinned --batch-sizes 1,2 --rates 20 --arrivals bursty "
    "--modes off,async,auto --policies price --temperature 1 --requests 1 --repeats 2 --warm-up 0 "
    "--max-tokens 12 --num-prompts 2 --categories qa writing"
)
TINY = SMALL.split()
ARMS = ["off", "async", "auto", "sync 2 threads"]
NUM_TURNS = 3 * 2 * len(ARMS)


def cells(out: Path) -> list[dict]:
    lines = map(json.loads, (out / KEPT_FILE).read_text().splitlines())
    return [line for line in lines if line["type"] == "cell"]


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_with_the_same_command_and_with_no_other(
    tmp_path, monkeypatch, capfd
):
    ask, words = run.ask, [*TINY, "--out", str(tmp_path)]
    asked: list[str] = []

    def interrupted(service, turn):
        asked.append(turn.salt)
        if len(asked) > 7:  # four to warm up, three turns of the first four
            raise KeyboardInterrupt
        return ask(service, turn)

    monkeypatch.setattr(run, "ask", interrupted)
    assert main(words) == 130
    monkeypatch.undo()
    first = cells(tmp_path)
    assert len(first) == 3
    assert not json.loads((tmp_path / "results.json").read_text())["is_complete"]
    assert "stopped before the end" in (tmp_path / "report.md").read_text()

    assert main([*words, "--max-tokens", "14"]) == 1
    assert "--max-tokens 12 there, 14 here" in capfd.readouterr().err

    assert main(words) == 0
    found = cells(tmp_path)
    assert found[:3] == first
    assert len(found) == NUM_TURNS
    assert {(c["repeat"], c["arm"], str(c["load"])) for c in found} == {
        (repeat, arm, load) for repeat in (0, 1) for arm in ARMS
        for load in ("{'in_flight': 1}", "{'in_flight': 2}", "{'rate': 20.0, 'arrivals': 'bursty'}")
    }  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    check_results(results)
    report = (tmp_path / "report.md").read_text()
    plots = {path.name for path in tmp_path.glob("*.png")}
    assert plots == {
        f"{n}.png" for n in ("interactivity", "budget", "accept_len", "speedup", "goodput")
    }
    assert all(f"]({name})" in report for name in plots)
    assert "A stop lies within 1 comparisons" in report
    assert "Measured by 2 runs" in report

    monkeypatch.setattr(command, "Run", None)  # nothing is left to measure
    assert main([*words, "--interactivity", "1e9"]) == 0
    assert "with 1e+09 tok/s for each user" in (tmp_path / "report.md").read_text()
    assert cells(tmp_path) == found


def check_results(results: dict) -> None:
    assert results["is_complete"]
    assert results["num_broken"] == 1
    rows = {(str(row["load"]), row["arm"]): row for row in results["rows"]}
    assert len(rows) == 3 * len(ARMS)
    for row in rows.values():
        assert row["tokens_per_s"]["low"] <= row["tokens_per_s"]["value"]
        assert row["ttft_ms"]["p50"]["value"] > 0
        assert (row["over_off"] is None) == (row["arm"] == "off")
        assert (row["equal"] == "sync 2 threads") == (row["arm"] in ("async", "auto"))
        assert row["round_ms"]["forward"] > 0
        assert sum(row["mode_shares"].values()) == pytest.approx(1.0)
    plain = rows["{'in_flight': 2}", "off"]
    assert plain["mode_shares"] == {"off": 1.0}
    assert (plain["accept_len"]["value"], plain["verified"]["value"]) == (1.0, 0.0)
    assert rows["{'in_flight': 1}", "async"]["hit_rate"] is not None
    summary = results["summary"]
    assert summary["auto_over_best_min"] > 0
    assert summary["auto_over_best_min_lo"] <= summary["auto_over_best_min_hi"]
    assert [size for size, _ in summary["budget_by_load"]] == [1, 2]
    assert summary["auto_over_fixed_at_largest"] is None  # no arm has fixed lengths
