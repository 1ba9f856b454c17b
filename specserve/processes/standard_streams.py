# pyright: strict
"""Standard input and output where they may be closed, full, or of another alphabet.

Imports nothing slow: what is closed is held before anything else is opened.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, cast

from specserve.errors import SpecserveError


def prepare_streams() -> None:
    """Before anything else is opened: what is closed is held, and all text can be written."""
    _hold_closed_streams()
    if sys.stdout is not None:  # as Python has stderr
        cast("TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")


def _hold_closed_streams() -> None:
    """Put nothing in the place of every standard stream that is closed.

    Else the next file or socket would get its number, and whatever is printed; here or in a child.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number: `fd`
    if sys.stderr is None:  # so that nobody who complains has to ask
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process


def is_stdout_open() -> bool:
    """Whether this process was started with a stdout."""
    return sys.stdout is not None


def require_stdout() -> None:
    """Raise SpecserveError where an answer would be computed for nobody."""
    if not is_stdout_open():
        raise SpecserveError("stdout: is closed; the answer is written there")


def require_stdin() -> None:
    """Raise SpecserveError where there is nothing to read, not even an end."""
    if sys.stdin is None:
        raise SpecserveError("stdin: is closed; what to ask is read from there")


def write_stdout(text: str) -> None:
    """Write at once. An OSError names stdout."""
    with named("stdout"):
        sys.stdout.write(text)
        sys.stdout.flush()


def complain(problem: str) -> None:
    """Say it on stderr, if anybody can read that; the exit code tells it, too."""
    with suppress(OSError):
        sys.stderr.write(f"specserve: {problem}\n")
        sys.stderr.flush()


@contextmanager
def named(stream: str) -> Generator[None]:
    """An OSError from inside, where only this stream is used, gets its name: a full disk, say."""
    try:
        yield
    except OSError as error:
        error.filename = stream
        raise
