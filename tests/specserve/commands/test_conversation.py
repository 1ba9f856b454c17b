"""A conversation line by line, with a real service in front of a scripted target."""

import io

import pytest

from specserve.cli import main
from specserve.types import Submit
from tests.specserve.api.conftest import model_folder, rig, shared_rig  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow

KNOWN = (
    "known are /reset, /quit, /exit and /help, and a message that begins with a slash is written "
    "with two"
)


@pytest.fixture
def say(rig, capsys, monkeypatch):  # noqa: F811
    """`say(script)` is the exit code of such a chat, and what it wrote to stderr."""

    def run(script: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(script))
        returncode = main(["chat", "--connect", rig.address])
        return returncode, capsys.readouterr().err

    return run


def asked(rig) -> list[str]:  # noqa: F811
    requests = [message.request for message in rig.target.received(Submit)]
    return [rig.tokenizer.decode(request.prompt_token_ids) for request in requests]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/quite", "unknown command /quite"),
        ("/quit now", "/quit stands alone"),
        ("/", "unknown command /"),
        ("/etc is what?", "unknown command /etc"),
        ("/reset now", "/reset stands alone"),
    ],
)
def test_an_unknown_command_is_no_question(rig, say, line, problem):  # noqa: F811
    assert say(f"{line}\n") == (1, f"specserve: {problem}; {KNOWN}\n")
    assert asked(rig) == []


@pytest.mark.parametrize("end", ["", "/quit\nnever\n", "/exit\nnever\n", "/bye\nnever\n"])
def test_the_end_of_a_conversation_is_no_failure(rig, say, end):  # noqa: F811
    assert say(f"fox\n{end}") == (0, "")
    assert asked(rig) == ["user: fox\nassistant:"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("max_tokens", "why"),
    [("5", "after 5 tokens (--max-tokens)"), ("9999", "the context is full; /reset forgets")],
)
def test_who_types_is_told_of_an_answer_that_was_cut(
    rig,  # noqa: F811
    capsys,
    monkeypatch,
    max_tokens,
    why,
):
    rig.script("the lazy dog " * 400)
    monkeypatch.setattr("sys.stdin", Terminal("fox\n"))
    main(["chat", "--connect", rig.address, "--max-tokens", max_tokens])
    error = capsys.readouterr().err
    assert error.startswith("specserve: the answer was cut after ")
    assert why in error


@pytest.mark.parametrize("word", ["/reset", "/clear"])
def test_what_was_said_can_be_forgotten(rig, say, word):  # noqa: F811
    assert say(f"fox\n{word}\nfox\n") == (0, "")
    assert asked(rig) == ["user: fox\nassistant:"] * 2


def test_help_lists_the_commands_and_asks_nothing(rig, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr("sys.stdin", io.StringIO("/help\n"))
    assert main(["chat", "--connect", rig.address]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("/reset", "/quit", "/exit", "/help", "//", "Ctrl-C"))
    assert asked(rig) == []


def test_a_message_may_begin_with_a_slash(rig, say):  # noqa: F811
    assert say("//etc is what?\n") == (0, "")
    assert asked(rig) == ["user: /etc is what?\nassistant:"]


def test_a_full_context_says_how_to_go_on(say):
    returncode, error = say(f"fox\n{'x ' * 500}\n")
    assert returncode == 1
    assert error.startswith("specserve: prompt: has ")
    assert error.endswith("; /reset forgets the conversation so far\n")


def test_nothing_is_to_forget_before_the_first_answer(say):
    returncode, error = say(f"{'x ' * 500}\n")
    assert returncode == 1
    assert "/reset" not in error
