# pyright: strict
"""`specserve chat`: a conversation in the terminal, with the model's own chat template."""

import argparse
import sys
from typing import TYPE_CHECKING

from specserve.api.call import ChatMessage
from specserve.commands.connection import add_connection_options, service_address
from specserve.commands.sampling_options import add_sampling_options, read_sampling
from specserve.errors import InvalidField, SpecserveError, Unavailable

if TYPE_CHECKING:
    from specserve.client import Client, Options

HELP = "talk to a model"
EXAMPLES = """examples:
  specserve chat                                       start a service for the conversation
  specserve chat --connect 127.0.0.1:7411 --temperature 0.7 --system "Be brief."

in the conversation: /reset forgets it, /exit or Ctrl-D ends it, Ctrl-C ends the answer
questions from a pipe: the exit code is 1 if one of them was not answered
"""

_EXIT_UNANSWERED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `chat`."""
    parser.add_argument("--system", metavar="TEXT", help="instruction before the first turn")
    add_sampling_options(parser)
    add_connection_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Talk until the end of input; raises SpecserveError if there is no service."""
    from specserve.client import Client

    options = read_sampling(arguments)
    if (num_samples := options.get("n", 1)) != 1:
        raise InvalidField("--n", f"is {num_samples}; a conversation goes on from one answer")
    opening = [ChatMessage("system", arguments.system)] if arguments.system else []
    with service_address(arguments) as address, Client(address) as client:
        client.server_info()  # before anybody types a question that nobody answers
        messages = list(opening)
        all_answered = True
        while (line := _read_line()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                messages = list(opening)
            elif line:
                asked = [*messages, ChatMessage("user", line)]
                answer = _answer(client, asked, options)
                if answer is None:  # a refused question is not remembered
                    all_answered = False
                else:
                    messages = [*asked, ChatMessage("assistant", answer)]
    # Who types has read what was refused; a script has not.
    return 0 if all_answered or sys.stdin.isatty() else _EXIT_UNANSWERED


def _answer(client: "Client", asked: list[ChatMessage], options: "Options") -> str | None:
    """What is said to the last question, also on stdout; None if that fails, and why on stderr."""
    answer = ""
    try:
        for delta in client.stream(asked, **options):
            answer += delta.text
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer += ""  # what was said stays said
    except SpecserveError as error:
        if isinstance(error, Unavailable):
            client.server_info()  # which fails if no later question would fare better
        sys.stderr.write(f"specserve: {error}\n")
        return None
    sys.stdout.write("\n")
    return answer


def _read_line() -> str | None:
    """The next line without its end; None at the end of input."""
    if sys.stdin.isatty():
        sys.stdout.write("> ")
        sys.stdout.flush()
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        return None
    except UnicodeDecodeError as error:
        raise InvalidField("chat", "stdin is not UTF-8") from error
    return line.strip() if line else None
