"""The defaults that the help of a command tells are those of the command."""

import pytest

from specserve.cli import main
from specserve.commands.service_options import _SECTIONS, _SWITCHES, _VALUE_FLAGS
from specserve.settings.config import Config

_FLAGS = (*_VALUE_FLAGS, *_SWITCHES)


def help_of(command: str, capsys) -> str:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["generate", "chat", "audit"])
def test_a_service_of_its_own_has_any_port_and_a_quiet_log(command, capsys):
    text = help_of(command, capsys)
    assert "--port PORT gRPC port (default: any free one)" in text
    assert "--log-level LEVEL debug, info, warning or error (default warning)" in text
    assert "(default 7411)" not in text


def test_a_launch_has_a_fixed_port_and_says_more(capsys):
    text = help_of("launch", capsys)
    assert "0 takes any free one (default 7411)" in text
    assert "debug, info, warning or error (default info)" in text


def test_a_launch_says_how_to_see_every_setting(capsys):
    assert "--show-config print every setting" in help_of("launch", capsys)


def test_flags_are_found_by_section_as_in_files(capsys):
    text = help_of("launch", capsys)
    places = [text.index(f" {section}: {title}: ") for section, title in _SECTIONS.items()]
    assert set(_SECTIONS) == set(Config.__struct_fields__)
    assert places == sorted(places)
    for section, begin, end in zip(_SECTIONS, places, [*places[1:], len(text)], strict=True):
        flags = [flag for flag, dotted, *_ in _FLAGS if dotted.startswith(f"{section}.")]
        assert flags
        assert [flag for flag in flags if f" {flag}" not in text[begin:end]] == []
    assert " server: the door" not in help_of("draft", capsys)


def test_an_audit_speculates_by_default(capsys):
    text = help_of("audit", capsys)
    assert "(default: async with draft processes, else sync)" in text
    assert "(default auto)" not in text.rpartition("--speculation MODE")[2]


def test_a_chat_offers_nothing_that_it_refuses(capsys):
    text = help_of("chat", capsys)
    assert not [flag for flag in ("--n ", "--logprobs", "--prompt-logprobs") if flag in text]
