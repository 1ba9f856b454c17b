"""How far long work has come that is no training.

A bar on a terminal, a line now and then elsewhere.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

log = logging.getLogger(__name__)

Item = TypeVar("Item")
_LINE_EVERY_S = 15.0


@contextmanager
def shown(what: str, total: int | None = None) -> Generator[Callable[[int], None]]:
    """Call what this gives with how much more is done, of `total` where that is known."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    lines = _Lines(what, total, time.monotonic)
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(what, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            if not console.is_terminal:
                lines.advance(count)

        yield advance


def each(what: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
    """The items, shown as they are taken; `total` may be left out of a sequence's."""
    if total is None and isinstance(items, Sequence):
        total = len(items)
    with shown(what, total) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def underway(what: str) -> Generator[None]:
    """Say what is done before anything can be counted."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
        return
    console.print(what, soft_wrap=True, highlight=False)
    yield


class _Lines:
    """A line of the log every quarter of a minute, with the time to go."""

    def __init__(self, what: str, total: int | None, clock: Callable[[], float]) -> None:
        self._what, self._total, self._clock = what, total, clock
        self._begin_s = self._said_s = clock()
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        now_s = self._clock()
        if now_s - self._said_s < _LINE_EVERY_S:
            return
        self._said_s = now_s
        if self._total is None:
            log.info("%s: %d so far", self._what, self._done)
            return
        left = max(0, self._total - self._done)
        to_go_s = (now_s - self._begin_s) / max(1, self._done) * left
        log.info("%s: %d of %d, %.0f s to go", self._what, self._done, self._total, to_go_s)
