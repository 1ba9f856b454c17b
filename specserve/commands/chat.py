# pyright: strict
"""`specserve chat`: a conversation in the terminal, with the model's own chat template."""

import argparse
import sys
from typing import TYPE_CHECKING

from specserve.api.call import ChatMessage
from specserve.api.events import Finished
from specserve.commands.connection import add_connection_options, client_of
from specserve.commands.sampling_options import add_sampling_options, read_sampling
from specserve.errors import InvalidField, SpecserveError, Unavailable
from specserve.processes.standard_streams import (
    complain,
    named,
    require_stdin,
    require_stdout,
    write_stdout,
)
from specserve.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from specserve.client import Client, Options

HELP = "talk to a model"
EXAMPLES = """examples:
  specserve chat                                       start a service for the conversation
  specserve chat --connect 127.0.0.1:7411 --temperature 0.7 --system "Be brief."

in the conversation: /reset forgets it, /quit, /exit or Ctrl-D ends it, /help shows this,
Ctrl-C ends the answer; a message that begins with a slash is written with two: //etc is what?
questions from a pipe: the exit code is 0 at their end, 1 if one of them was not answered
"""

_EXIT_UNANSWERED = 1
_EXIT, _RESET, _HELP = "exit", "reset", "help"
_COMMANDS = {  # what is typed, of which the first is what is told; the others are other programs'
    "/reset": _RESET,
    "/clear": _RESET,
    "/quit": _EXIT,
    "/exit": _EXIT,
    "/bye": _EXIT,
    "/help": _HELP,
    "/?": _HELP,
}
_HELP_TEXT = """/reset          forget the conversation so far
/quit, /exit    end it, as Ctrl-D does
/help           show this
//...           a message that begins with a slash
Ctrl-C          end the answer
"""
_WAY_OUT = "; /reset forgets the conversation so far"
_REFUSED = ("n", "logprobs", "prompt_logprobs")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `chat`."""
    parser.add_argument("--system", metavar="TEXT", help="instruction before the first turn")
    add_sampling_options(parser, _REFUSED)
    add_connection_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talk until the end of input; raises SpecserveError if there is no service."""
    require_stdout()
    require_stdin()
    options = _read_options(arguments)
    opening = [ChatMessage("system", arguments.system)] if arguments.system else []
    with client_of(arguments) as client:
        client.server_info()  # before anybody types a question that nobody answers
        messages = list(opening)
        all_answered = True
        while (line := _read_line()) is not None:
            command = _COMMANDS.get(line)
            if command == _EXIT:
                break
            if command == _RESET:
                messages = list(opening)
            elif command == _HELP:
                write_stdout(_HELP_TEXT)
            elif line.startswith("/") and not line.startswith("//"):
                complain(_command_problem(line))
                all_answered = False
            elif line:
                said = line[1:] if line.startswith("//") else line
                asked = [*messages, ChatMessage("user", said)]
                way_out = _WAY_OUT if len(messages) > len(opening) else ""
                answer = _answer(client, asked, options, way_out)
                if answer is None:  # a refused question is not remembered
                    all_answered = False
                else:
                    messages = [*asked, ChatMessage("assistant", answer)]
    # Who types has read what was refused; a script has not.
    return 0 if all_answered or sys.stdin.isatty() else _EXIT_UNANSWERED


def _read_options(arguments: argparse.Namespace) -> "Options":
    """Raises InvalidField for what a conversation has no use for."""
    options = read_sampling(arguments)
    if (num_samples := options.get("n", 1)) != 1:
        raise InvalidField("--n", f"is {num_samples}; a conversation goes on from one answer")
    for field in ("logprobs", "prompt_logprobs"):
        if options.get(field) is not None:
            flag = "--" + field.replace("_", "-")
            raise InvalidField(flag, "a conversation shows none; generate --json does")
    return options


def _command_problem(line: str) -> str:
    """What is wrong with a line that begins like a command and is none."""
    word = line.split()[0]
    problem = f"{word} stands alone" if word in _COMMANDS else f"unknown command {word}"
    return (
        f"{problem}; known are /reset, /quit, /exit and /help, and a message that begins with a "
        "slash is written with two"
    )


def _answer(
    client: "Client", asked: list[ChatMessage], options: "Options", way_out: str
) -> str | None:
    """What is said to the last question, also on stdout; None if that fails, and why on stderr.

    `way_out` is what may help where all of it is too long.
    """
    answer, finished = "", None
    try:
        stream = client.stream(asked, **options)
        for delta in stream:
            answer += delta.text
            write_stdout(delta.text)
        finished = stream.finished
    except KeyboardInterrupt:
        pass  # what was said stays said
    except SpecserveError as error:
        if isinstance(error, Unavailable):
            client.server_info()  # which fails if no later question would fare better
        complain(f"{error}{way_out if _is_too_long(error) else ''}")
        return None
    write_stdout("\n")
    # A script that wants to know asks `generate --json`.
    if finished is not None and sys.stdin.isatty() and (remark := _cut_remark(finished, options)):
        complain(remark)
    return answer


def _cut_remark(finished: Finished, options: "Options") -> str:
    """Where an answer ends before its model has ended it; empty for one that is whole."""
    if finished.samples[0].finish_reason is not FinishReason.LENGTH:
        return ""
    num_tokens = finished.usage.num_generated_tokens
    asked_for = options.get("max_tokens") or SamplingParams().max_tokens
    if num_tokens < asked_for:
        return f"the answer was cut after {num_tokens} tokens: the context is full{_WAY_OUT}"
    return f"the answer was cut after {num_tokens} tokens (--max-tokens)"


def _is_too_long(error: SpecserveError) -> bool:
    """Whether the service refused a prompt for its length, which only its text tells."""
    is_of_prompt = isinstance(error, InvalidField) and error.field == "prompt"
    return is_of_prompt and "; the limit is " in str(error)


def _read_line() -> str | None:
    """The next line without its end; None at the end of input."""
    if sys.stdin.isatty():
        write_stdout("> ")
    try:
        with named("stdin"):
            line = sys.stdin.readline()
    except KeyboardInterrupt:
        return None
    except UnicodeDecodeError as error:
        raise InvalidField("chat", "stdin is not UTF-8") from error
    return line.strip() if line else None
