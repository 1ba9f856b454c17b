# pyright: strict
"""What the command lines of the benches share: targets, flags that were renamed, progress."""

import argparse
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specserve.settings.sizes import parse_count
from specserve.settings.target_source import EMBEDDED_TARGET


@contextmanager
def progress_bar(total: int, console: Console) -> Generator[Callable[[str], None]]:
    """Yields `advance`, which is told what comes next before each of `total` measurements.

    Drawn between measurements only: a refresh thread would disturb them.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total, what="loading, warming up")
        progress.refresh()
        started = False

        def advance(what: str) -> None:
            nonlocal started
            progress.update(task, advance=int(started), what=what, refresh=True)
            started = True

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
