"""What a row was measured to do over one API, held against its bars and kept.

A bar that is missed fails its test, once everything has been measured. In `make test`, which shares
its two cores with another test, times may be three times as long: that run is to find what is
broken, and `make test-long` what is slow.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.reliability.figures import keep
from tests.reliability.scale import is_long

_SLACK, _SHARE = 10.0, 0.2  # of a bar, in a short run beside others on shared cores
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Measured:
    """Use as `with measured(row, api) as found:`."""

    def __init__(self) -> None:
        self.figures: dict[str, float | str] = {}
        self.missed: list[str] = []

    def note(self, **figures: float | str) -> None:
        """Figures without a bar."""
        self.figures |= {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in figures.items()
        }

    def none(self, **counts: list[Any]) -> None:
        """What there must be none of; the first few are told."""
        for name, found in counts.items():
            self.note(**{name: len(found)})
            if found:
                self.missed.append(f"{name}: {len(found)}, such as {found[:3]}")

    def at_most(self, bar: float, *, is_time: bool = True, **figure: float) -> None:
        """One figure and its bar."""
        ((name, value),) = figure.items()
        self.note(**figure)
        if value > bar * (_SLACK if is_time and not is_long() else 1.0):
            self.missed.append(f"{name}: {value:.3g}, the bar is {bar:g}")

    def at_least(self, bar: float, **figure: float) -> None:
        """One figure and its bar, which a short run may miss by far."""
        ((name, value),) = figure.items()
        self.note(**figure)
        if value < bar * (1.0 if is_long() else _SHARE):
            self.missed.append(f"{name}: {value:.3g}, the bar is {bar:g}")


@contextmanager
def measured(row: int, api: str) -> Iterator[Measured]:
    """Keeps what was measured, also where the test fails on the way; fails for missed bars."""
    found = Measured()
    try:
        yield found
    except BaseException as error:
        found.missed.append(f"{type(error).__name__}: {str(error).splitlines()[:1]}")
        raise
    finally:
        if found.missed:  # another test of this row may have missed another bar
            found.note(missed="; ".join(found.missed))
        keep(row, api, **found.figures)
    assert not found.missed, "; ".join(found.missed)


def rss_mb(pid: int) -> float:
    """Megabytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def num_files(pid: int) -> int:
    """That a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
