"""The defaults that the help of a command tells are those of the command."""

import pytest

from specserve.cli import main


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


def test_an_audit_speculates_by_default(capsys):
    text = help_of("audit", capsys)
    assert "(default: async with draft processes, else sync)" in text
    assert "(default auto)" not in text.partition("--generation-config")[0]


def test_a_chat_offers_nothing_that_it_refuses(capsys):
    text = help_of("chat", capsys)
    assert not [flag for flag in ("--n ", "--logprobs", "--prompt-logprobs") if flag in text]
