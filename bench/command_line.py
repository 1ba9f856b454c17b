# pyright: strict
"""What the command lines of benches share: targets, sampling, flags that were renamed, progress."""

import argparse
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from specserve.errors import InvalidField
from specserve.settings.sizes import parse_count
from specserve.settings.target_source import EMBEDDED_TARGET

_LINE_EVERY_S = 30.0  # where no bar can be drawn
_ALL_OF_IT_S = 1e9  # measurements may take minutes each


@contextmanager
def progress_bar(total: int, console: Console) -> Generator[Callable[[str], None]]:
    """Yields `advance`, which is told what comes next before each of `total` measurements.

    Beside the time that has passed stands what is left, if the rest goes on as it did. Drawn
    between measurements only: a refresh thread would disturb them. Without a terminal it is a line
    now and then.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(
        *columns, console=console, auto_refresh=False, speed_estimate_period=_ALL_OF_IT_S
    ) as progress:
        task = progress.add_task("", total=total, what="loading, warming up")
        progress.refresh()
        begin_s = said_s = time.monotonic()
        num_begun = 0

        def advance(what: str) -> None:
            nonlocal num_begun, said_s
            progress.update(task, advance=int(num_begun > 0), what=what, refresh=True)
            now_s = time.monotonic()
            if not console.is_terminal and now_s - said_s >= _LINE_EVERY_S:
                said_s = now_s
                minutes = (now_s - begin_s) / 60
                console.print(f"{num_begun} of {total} after {minutes:.1f} minutes; now {what}")
            num_begun += 1

        yield advance
        progress.update(task, advance=1, what="done", refresh=True)


class _Renamed(argparse.Action):
    """Refuses a flag; `const` is what it is called now."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:  # noqa: ANN401
        parser.error(f"{self.option_strings[0]} is now {self.const}")


def add_renamed_flag(parser: argparse.ArgumentParser, old: str, new: str) -> None:
    """A flag that was `old` is answered with what it is called now."""
    parser.add_argument(old, nargs="*", action=_Renamed, const=new, help=argparse.SUPPRESS)


TARGET_HELP = "folder, .gguf file, hub id, smollm2 or tiny (default: smollm2 if installed)"
NO_BALLAST = "none"


def default_ballasts(target: Path, of_tiny: Sequence[str]) -> tuple[str, ...]:
    """Only the tiny model has to be padded to cost what a model costs."""
    return tuple(of_tiny) if target == EMBEDDED_TARGET else (NO_BALLAST,)


def num_params(ballast: str) -> int:
    """0 for none. Raises InvalidField."""
    return 0 if ballast == NO_BALLAST else parse_count(ballast, "--ballast")


SAMPLING_FIELDS = (
    "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def add_sampling_option(parser: argparse.ArgumentParser) -> None:
    """--sampling, which `read_sampling` reads."""
    parser.add_argument(
        "--sampling",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help=f"of every request, besides: {', '.join(SAMPLING_FIELDS)}",
    )


def read_sampling(words: Sequence[str]) -> dict[str, float]:
    """Requests' own fields. Raises InvalidField."""
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in SAMPLING_FIELDS:
            raise InvalidField("--sampling", f"{name!r} is none of {', '.join(SAMPLING_FIELDS)}")
        try:
            found[name] = int(value) if name == "top_k" else float(value)
        except ValueError:
            raise InvalidField("--sampling", f"{word!r} is not of the form top_p=0.9") from None
    return found
