# pyright: strict
"""The `specserve` command: parse, dispatch, turn errors into one line and an exit code.

Imports a subcommand's machinery only when it runs: `--help` answers at once.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from specserve import __version__
from specserve.commands import (
    audit,
    calibrate,
    chat,
    draft,
    generate,
    info,
    launch,
    profile,
    top,
    train,
)
from specserve.commands.foreign_flags import refuse_foreign_flags
from specserve.errors import SpecserveError
from specserve.nearest import nearest
from specserve.processes.standard_streams import complain, is_stdout_open, write_stdout
from specserve.processes.stop_signals import interrupts_merged

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as shells report SIGINT
EXIT_PIPE_CLOSED = 141  # and SIGPIPE
_COMMANDS = {
    "launch": launch,
    "draft": draft,
    "generate": generate,
    "chat": chat,
    "train": train,
    "info": info,
    "top": top,
    "calibrate": calibrate,
    "audit": audit,
    "profile": profile,
}
# What other programs call what a command does.
_OTHER_NAMES = {
    "serve": "specserve launch",
    "server": "specserve launch",
    "run": "specserve launch, or specserve chat for a conversation",
    "complete": "specserve generate",
    "bench": "python -m bench.sweep (bench/README.md)",
    "benchmark": "python -m bench.sweep (bench/README.md)",
}
# What to type instead of words that stand alone, by command; else as for a model.
_STRAY_WORDS = {
    "chat": "questions are typed in the conversation, or come by a pipe: "
    "echo QUESTION | specserve chat",
    "generate": "a prompt of several words is one in quotation marks",
    "info": "a model is named by --target, a running service by --connect",
    "top": "a running service is named by --connect",
}
_USAGE_CODES = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")

EXAMPLES = """examples:
  specserve launch                              serve SmolLM2 on 127.0.0.1:7411
  specserve draft --attach-to 127.0.0.1:7500    draft for services that others have launched
  specserve generate "def fibonacci(n):"        start a service, continue the text, stop it
  specserve generate --connect 127.0.0.1:7411 --json --max-tokens 32 "Once"
  specserve chat --connect 127.0.0.1:7411       talk to a running service
  specserve train dspark --out drafters/mine    train a drafter for the tiny model
  specserve info                                versions, machine, the model
  specserve top                                 watch the service on 127.0.0.1:7411
  specserve calibrate --drafter dspark          make a drafter's confidences probabilities
  specserve audit --quick --drafter ngram       check that speculation is lossless
  specserve profile                             what forwards of the target take here
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a failure, 2 for bad usage or configuration."""
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        with interrupts_merged():
            return arguments.run(arguments)
    except SpecserveError as error:
        complain(str(error))
        return EXIT_USAGE if error.code in _USAGE_CODES else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # the reader, such as `head`, has seen enough
        return EXIT_PIPE_CLOSED
    except OSError as error:  # a full disk behind stdout, say
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain(named)
        _forget_output()
        return EXIT_FAILED


def build_parser() -> "_Parser":
    """The whole command line."""
    parser = _Parser(
        prog="specserve",
        description="Asynchronous, lossless speculative decoding as a service.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specserve {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.HELP[:1].upper() + command.HELP[1:] + ".",
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(subparser)
        subparser.set_defaults(run=command.run)
        parser.commands[name] = subparser
    return parser


def _parse(words: list[str]) -> argparse.Namespace:
    """Raises InvalidField for a flag of another server; ends the process for other bad usage."""
    parser = build_parser()
    if words and (meant := _OTHER_NAMES.get(words[0])):
        parser.error(f"there is no command {words[0]}; {meant} is what you mean")
    command = parser.commands.get(words[0]) if words and words[0] != "train" else None
    if command is None:  # or one that reads its flags itself
        return parser.parse_args(words)
    refuse_foreign_flags(words[1:], command.flags)
    arguments, strays = parser.parse_known_args(words)
    if strays:
        command.error(_unrecognized(words[0], strays, command.shown_flags))
    return arguments


def _unrecognized(command: str, strays: Sequence[str], own: Sequence[str]) -> str:
    """With the flag that was meant, where there is one."""
    problem = f"unrecognized arguments: {' '.join(strays)}"
    if not strays[0].startswith("-"):
        model = "a model is named by --target" if "--target" in own else None
        advice = _STRAY_WORDS.get(command, model)
        return f"{problem}; {advice}" if advice else problem
    flag = strays[0].partition("=")[0]
    near = nearest(flag, own)
    return f"{problem} (nearest: {near})" if near else problem


def _forget_output() -> None:
    """What is still buffered has nowhere to go, and would be tried again at the end."""
    if is_stdout_open():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """One line instead of usage and error: the help is a flag away."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(**settings)
        # What begins like a negative number is a value, and whoever takes it says what is wrong
        # with it: to argparse -60M would be an option, and the one before it without a value.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.commands: dict[str, _Parser] = {}

    @property
    def flags(self) -> list[str]:
        """All there are, without those of commands."""
        return list(self._option_string_actions)

    @property
    def shown_flags(self) -> list[str]:
        """Those that its help names."""
        actions = self._option_string_actions.items()
        return [flag for flag, action in actions if action.help != argparse.SUPPRESS]

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401
        """argparse says nothing where there is no room for its help."""
        if message and file is sys.stdout and is_stdout_open():
            write_stdout(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"specserve: {message} (see {self.prog} --help)\n")
