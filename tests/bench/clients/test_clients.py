"""Transcripts of clients: what is kept of them, what counts as working, and one whole run."""

import sys
from pathlib import Path

import pytest

from bench.clients.__main__ import CLIENTS, main, venvs_of
from bench.clients.load_generators import AIPERF
from bench.clients.setting import Command, KnownClient
from bench.clients.transcript import Ran, is_success, run, text_of
from specserve.errors import InvalidField

VENV = Path(sys.prefix)
ECHO = KnownClient(
    name="echo",
    package="openai",
    install="pip install openai",
    commands=lambda setting: [],
    expects="heard",
    drops=lambda line: line.startswith("noise"),
)


def ran(*, code: int = 0, output: str = "heard") -> Ran:
    return Ran(
        words=("client", "--file", "/somewhere/else/x y"),
        variables={"HOME": "nowhere"},
        output=output.splitlines(),
        num_dropped=2,
        seconds=1.25,
        code=code,
    )


def test_a_client_works_that_ends_well_and_prints_what_it_is_run_for():
    assert is_success(ECHO, [ran(), ran()])
    assert not is_success(ECHO, [ran(), ran(code=3)])
    assert not is_success(ECHO, [ran(output="nothing"), ran()])


def test_a_transcript_can_be_typed_again_and_names_no_machine():
    text = text_of(["heading"], [ran(output="heard\n\n\n\nlast")], {"/somewhere/else": "SCRATCH"})
    assert text.splitlines() == [
        "heading",
        "",
        "$ HOME=nowhere client --file 'SCRATCH/x y'",
        "heard",
        "",
        "last",
        "[exit code 0 after 1.2 s, 2 lines of its own log left out]",
    ]


def test_both_streams_of_a_client_are_read_and_its_noise_is_counted():
    code = "import sys; print('noise 1'); print('heard', file=sys.stderr); sys.exit(4)"
    found = run(ECHO, Command(("python", "-c", code)), VENV)
    assert (found.output, found.num_dropped, found.code) == (["heard"], 1, 4)


def test_aiperf_is_quoted_without_its_log_but_with_its_warnings_of_us():
    drops = AIPERF.drops
    assert drops("09:14:01.413 INFO     Registered (service_registry.py:196)")
    assert not drops("09:14:01.413 WARNING  Ignoring malformed vLLM spec-decode payload")
    assert not drops("│         Spec Decode Steps (count) │  6.88 │")


@pytest.mark.parametrize("word", ["aiperf", "aiperf=", "nobody=venv"])
def test_an_environment_of_nobody_is_refused(word):
    with pytest.raises(InvalidField, match=r"--venv: .* has to be NAME=DIR"):
        venvs_of([word])
    assert venvs_of(["aiperf=/x"])["aiperf"] == Path("/x")
    assert set(venvs_of([])) == set(CLIENTS)


@pytest.mark.slow
def test_a_whole_run_keeps_who_works_and_says_who_is_absent(tmp_path, capsys):
    words = ["--only", "openai", "guidellm", "--venv", f"guidellm={tmp_path}", "--target", "tiny"]
    words += ["--max-tokens", "16", "--flags", "--speculation sync --oversubscribe"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "guidellm: not installed; pip install" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["openai.txt"]
    text = (tmp_path / "out" / "openai.txt").read_text(encoding="utf-8")
    first, _, service, *_ = text.splitlines()
    assert first.endswith("unchanged, on specserve: works")
    assert service == "service: specserve launch --target tiny --speculation sync --oversubscribe"
    assert "$ python bench/clients/ask_openai.py http://127.0.0.1:" in text
    assert "same text: True" in text
    assert str(Path(__file__).parents[3]) not in text
