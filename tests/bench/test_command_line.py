"""Flags of benches that were renamed, and the bar of progress."""

import io

import pytest
from rich.console import Console

from bench import command_line
from bench.command_line import progress_bar
from bench.configurations import __main__ as configurations


@pytest.mark.parametrize("words", [["--rules", "coupled"], ["--rules=coupled"], ["--rules"]])
def test_a_flag_that_was_renamed_is_answered_with_its_new_name(words, capfd):
    with pytest.raises(SystemExit) as caught:
        configurations.main(["--quick", *words])
    assert caught.value.code == 2
    assert capfd.readouterr().err.endswith("error: --rules is now --methods\n")


def test_the_help_does_not_offer_it():
    told = configurations.build_parser().format_help()
    assert "--methods" in told
    assert "--rules" not in told


def test_the_bar_counts_what_is_done_and_tells_what_comes_and_how_long_it_takes():
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=100)
    with progress_bar(3, console) as advance:
        for what in ("one", "two", "three"):
            advance(what)
    said = terminal.getvalue()
    assert "-:--:--" in said  # nothing is known before the first measurement
    assert "2/3" in said
    assert "three" in said
    assert said.count("0:00:0") > 3
    assert "3/3" in said


def test_without_a_terminal_it_is_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(command_line, "_LINE_EVERY_S", 0.0)
    log = io.StringIO()
    with progress_bar(2, Console(file=log, width=100)) as advance:
        advance("one")
        advance("two")
    said = log.getvalue().splitlines()
    assert said[:2] == [
        "0 of 2 after 0.0 minutes; now one",
        "1 of 2 after 0.0 minutes; now two",
    ]
