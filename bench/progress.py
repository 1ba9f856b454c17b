# pyright: strict
"""The progress bar of the benches."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
