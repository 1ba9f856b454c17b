"""The bench of outages with real services, cut short."""

import msgspec
import pytest

from bench.bootstrap import Interval
from bench.machine import describe_machine
from bench.outage import GOAL, RETURN_GOAL_S, Outcome, Results, main, ratio_to_plain, verdict
from bench.writing import REPORT_FILE, RESULTS_FILE
from tests.bench.services.traces import trace


@pytest.mark.slow
def test_a_killed_and_a_hung_draft_are_measured_and_change_no_text(tmp_path):
    words = ["--target", "tiny", "--num-prompts", "1", "--categories", "qa", "--max-tokens", "24"]
    words += ["--ballast", "10M", "--unpinned"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = msgspec.json.decode((tmp_path / RESULTS_FILE).read_bytes(), type=Results)
    assert set(results.summary) == {
        f"{fault}, {name}" for fault in ("killed", "hung") for name in ("by default", "skip")
    }
    for found in results.summary.values():
        assert found is not None
        assert found.num_prompts == 1
        assert found.value > 0
    assert results.num_returned == 0
    assert all(len(seconds) == 1 for seconds in results.back_s.values())
    assert all(0 < each < 60 for seconds in results.back_s.values() for each in seconds)
    assert (tmp_path / "outage.png").read_bytes().startswith(b"\x89PNG")
    assert "killed" in (tmp_path / REPORT_FILE).read_text(encoding="utf-8")


def test_a_slow_outage_counts_until_the_draft_is_back():
    plain = trace([1] * 12, round_s=0.1)
    unharmed = Outcome(trace=plain, plain=plain, back_s=9.0)
    slow = Outcome(trace=trace([1, 3, 1, 1, 6], round_s=0.5), plain=plain, back_s=2.6)
    assert (unharmed.was_away, slow.was_away) == (True, False)
    assert unharmed.meanwhile == pytest.approx((12, 1.2, 1.2))
    assert slow.meanwhile == pytest.approx((5, 1.5, 0.5))
    found = ratio_to_plain([unharmed, slow])
    assert found is not None
    assert found.value == pytest.approx((17 / 2.7) / (17 / 1.7))
    assert found.num_prompts == 2


def test_a_draft_that_was_back_before_the_first_token_says_nothing_of_speed():
    plain = trace([1] * 12, round_s=0.1)
    soon = Outcome(trace=plain, plain=plain, back_s=0.5)
    assert soon.meanwhile == (0, 0.0, 0.0)
    assert ratio_to_plain([soon]) is None


def test_the_verdict_names_both_goals():
    def results(speed, seconds, high=None):
        found = Interval(value=speed, low=speed, high=high or speed, num_prompts=2)
        return Results(
            summary={"killed, skip": found},
            back_s={"killed, skip": seconds},
            num_returned=0,
            ballast="30M",
            num_tokens=64,
            prompts="",
            machine=describe_machine(),
            command="",
        )

    good, slow = results(GOAL, [1.0, RETURN_GOAL_S]), results(GOAL - 0.01, [1.0, 2.0])
    late = results(GOAL, [1.0, RETURN_GOAL_S + 0.1])
    assert verdict(good).count("reached") == 2
    assert "killed, skip 0.94 [0.94, 0.94], missed;" in verdict(slow)
    assert "open: the interval" in verdict(results(GOAL - 0.01, [1.0], high=GOAL))
    assert "back after 10.1 s" in verdict(late)
    assert verdict(late).endswith("missed.")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("--ballast", "huge"), ("--num-prompts", "0"), ("--max-tokens", "1"), ("--prompts", "8"),
        ("--drafter", "nobody"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, field, value):
    assert main(["--target", "tiny", field, value, "--out", str(tmp_path)]) == 1
    assert field.removeprefix("--") in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
