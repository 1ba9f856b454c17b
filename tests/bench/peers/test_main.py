"""The command: what it refuses, and one whole run with the peers that need no installation."""

import json
import sys

import pytest

from bench.peers.__main__ import build_parser, main, plan_of
from bench.peers.environments import TRANSFORMERS, VLLM, Environment
from bench.peers.plan import FULL, QUICK
from specserve.errors import Unsupported


@pytest.fixture(name="envs")
def _envs(tmp_path):
    """An environment of transformers that is this very one."""
    environment = Environment(TRANSFORMERS, tmp_path / "envs")
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    environment.python.chmod(0o755)
    (environment.folder / "installed.json").write_text('{"transformers": "of these tests"}')
    return tmp_path / "envs"


@pytest.mark.slow
def test_a_whole_run_measures_who_is_there_and_says_who_is_absent(tmp_path, envs):
    words = ["--quick", "--target", "tiny", "--envs", str(envs), "--threads", "1"]
    words += ["--requests", "1", "2", "--max-tokens", "8", "--modes", "plain", "assisted"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    measured = {
        (row["arm"]["peer"], row["arm"]["mode"], row["num_requests"]) for row in results["rows"]
    }
    assert measured == {
        ("specserve", "plain", 1),
        ("specserve", "plain", 2),
        ("transformers", "plain", 1),
        ("transformers", "plain", 2),
        ("transformers", "assisted", 1),
    }
    for row in results["rows"]:
        assert row["tokens_per_s"] > 0
        assert 0 < row["first_token_ms"] < 1e5
        assert row["num_passes"] == 2
        assert row["plain_over_this"]["num_pairs"] == 2
        assert row["same_text_share"] > 0.3  # bfloat16 arithmetic differs in its last bits
    for one in results["measurements"]:
        assert len(one["call"]["answers"]) == one["num_requests"]
        assert all(answer["num_tokens"] == 8 for answer in one["call"]["answers"])
    assert results["summary"] == {}  # no peer of a goal
    reasons = {absent["arm"]["peer"]: absent["reason"] for absent in results["absent"]}
    assert reasons.keys() == {"llama.cpp", "vllm"}
    assert all("--install" in reason for reason in reasons.values())
    assert results["versions"] == {"transformers": {"transformers": "of these tests"}}
    assert results["is_complete"]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "not installed; python -m bench.peers --install vllm" in report


@pytest.mark.slow
def test_a_peer_that_does_not_start_is_absent_with_its_last_words(tmp_path, envs):
    Environment(TRANSFORMERS, envs).python.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    words = ["--quick", "--target", "tiny", "--envs", str(envs), "--threads", "1"]
    words += ["--peers", "specserve", "transformers", "--modes", "plain", "--requests", "1"]
    assert main([*words, "--max-tokens", "4", "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["arm"]["peer"] for row in results["rows"]] == ["specserve"]
    [absent] = results["absent"]
    assert absent["reason"] == "ended with 3: no such luck"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "0"], "--threads: 0 is less than 1"),
        (["--threads", "4096"], "--threads: 4096 is more than the"),
        (["--requests", "4", "0"], "--requests: 0 is less than 1"),
        (["--passes", "0"], "--passes: 0 is less than 1"),
        (["--max-tokens", "1"], "--max-tokens: 1 is less than 4"),
        (["--target", "/nonexistent/model.gguf"], "--target"),
    ],
)
def test_a_senseless_flag_is_named_on_one_line(words, said, tmp_path, capfd):
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    line = capfd.readouterr().err.strip()
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize("words", [["--peers", "ollama"], ["--install", "pip"], ["--modes", "x"]])
def test_unknown_names_are_refused_with_those_that_are_known(words, capfd):
    with pytest.raises(SystemExit):
        build_parser().parse_args(words)
    assert "invalid choice" in capfd.readouterr().err


def test_flags_say_what_differs_from_the_plan():
    parser = build_parser()
    assert plan_of(parser.parse_args([])) == FULL
    assert plan_of(parser.parse_args(["--quick"])) == QUICK
    plan = plan_of(
        parser.parse_args(["--quick", "--requests", "16", "--peers", "vllm", "--passes", "3"])
    )
    assert (plan.num_requests, plan.peers, plan.num_passes) == ((16,), ("vllm",), 3)
    assert plan.threads == QUICK.threads


def test_an_installation_that_was_stopped_does_not_count(tmp_path):
    environment = Environment(VLLM, tmp_path)
    with pytest.raises(Unsupported, match="--install vllm"):
        environment.versions()
    environment.python.parent.mkdir(parents=True)
    with pytest.raises(Unsupported, match="--install vllm"):
        environment.versions()


def test_a_tool_that_a_build_needs_is_named_where_it_is_missing(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--install", "llama.cpp", "--envs", str(tmp_path)]) == 1
    assert "cmake is missing; on Debian: apt-get install" in capfd.readouterr().err
