# pyright: strict
"""Whether somebody else used the machine meanwhile. Linux only.

With a draft process the service has no core to spare: its own API process may keep the target
waiting, so that waiting says nothing of others. What others ran is counted, in nanoseconds: a job
takes a tenth of a second, of which the ticks of processor time alone are a tenth. The client leaves
the target's core alone.
"""

import os
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.processes import usage

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _CHILDREN = 11, 13  # fields of /proc/PID/stat after the name: user and system time of each
_STOLEN = 7  # column of /proc/stat: what a machine below this one gave to others


class _Ran(NamedTuple):
    """What a process has run, in seconds."""

    exact_s: float  # of the threads that live
    ticks_s: float  # of those that have ended, too, but in whole ticks
    children_s: float  # of children that have ended and were waited for, in ticks


class ForeignLoad:
    """Since it was made: the share of a core that processes other than `own` have used."""

    def __init__(self, own: Collection[int]) -> None:
        self._own = frozenset(own)
        self._before = self._others()
        self._stolen_s = _stolen_s()
        self._start_s = time.monotonic()

    def share(self) -> float:
        """Of one core: 1.0 is a core kept busy all the time. 0 for no time."""
        passed_s = time.monotonic() - self._start_s
        # A tick may be the end of one that began long before.
        stolen_s = max(0.0, _stolen_s() - self._stolen_s - _TICK_S)
        nothing = _Ran(0.0, 0.0, 0.0)
        ran_s = sum(
            _rise(self._before.get(pid, nothing), now) for pid, now in self._others().items()
        )
        return (ran_s + stolen_s) / passed_s if passed_s > 0 else 0.0

    def _others(self) -> dict[int, _Ran]:
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        return {pid: _ran(pid) for pid in pids if pid not in self._own}


def _rise(before: _Ran, now: _Ran) -> float:
    """What a process and its children that have ended meanwhile have run since."""
    exact_s = now.exact_s - before.exact_s
    # Less than nothing: a thread has ended, and what it ran is among the ticks alone.
    own_s = exact_s if exact_s >= 0 else max(0.0, now.ticks_s - before.ticks_s)
    return own_s + now.children_s - before.children_s


def _ran(pid: int) -> _Ran:
    """Nothing for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _Ran(0.0, 0.0, 0.0)
    fields = text.rpartition(")")[2].split()
    ticks_s, children_s = (
        (int(fields[at]) + int(fields[at + 1])) * _TICK_S for at in (_UTIME, _CHILDREN)
    )
    return _Ran(usage(pid).ran_s, ticks_s, children_s)


def _stolen_s() -> float:
    columns = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    return int(columns[_STOLEN]) * _TICK_S


@contextmanager
def client_beside(cores: Sequence[int], *, is_pinned: bool) -> Generator[None]:
    """This process on all of `cores` but the first, the target's; anywhere unless `is_pinned`."""
    if is_pinned:
        _move_to(cores[1:] or cores)
    try:
        yield
    finally:
        _move_to(cores)  # services inherit what this process may use


def _move_to(cores: Sequence[int]) -> None:
    """All threads of this process: gRPC has some of its own."""
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:  # the thread has ended
            continue
