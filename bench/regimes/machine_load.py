# pyright: strict
"""Whether somebody else used the machine meanwhile. Linux only.

With a draft process the service has no core to spare: its own API process may keep the target
waiting, so that waiting says nothing of others. What others ran is counted, in nanoseconds: a job
takes a tenth of a second, of which the ticks of processor time alone are a tenth.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

from bench.processes import usage

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME = 11  # fields of /proc/PID/stat after the name: user and system time
_IDLE, _IOWAIT, _STOLEN = 3, 4, 7  # columns of /proc/stat: those that are no work, and others' work
_NUM_COLUMNS = 8  # guests are counted under user already


class ForeignLoad:
    """Since it was made: the share of a core that processes other than `own` have used."""

    def __init__(self, own: Collection[int]) -> None:
        self._own = frozenset(own)
        self._start_s = time.monotonic()
        self._ran = self._others()
        self._busy_s, self._stolen_s = self._ticks()

    def share(self) -> float:
        """Of one core: 1.0 is a core kept busy all the time. 0 for no time."""
        busy_s, stolen_s = self._ticks()
        ran = self._others()
        ran_s = sum(seconds - self._ran.get(pid, 0.0) for pid, seconds in ran.items())
        passed_s = time.monotonic() - self._start_s
        # Who came and went unseen shows in ticks alone, of which every process may hide one.
        hidden_s = busy_s - self._busy_s - (len(self._own) + 2) * _TICK_S
        used_s = max(0.0, ran_s + stolen_s - self._stolen_s, hidden_s)
        return used_s / passed_s if passed_s > 0 else 0.0

    def _others(self) -> dict[int, float]:
        """Seconds that each process has run, but for our own."""
        pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return {pid: usage(pid).ran_s for pid in pids if pid not in self._own}

    def _ticks(self) -> tuple[float, float]:
        """Seconds, in ticks: of all cores but what our own processes used; stolen from them."""
        text = Path("/proc/stat").read_text(encoding="ascii")
        ticks = [int(column) for column in text.split("\n", 1)[0].split()[1 : 1 + _NUM_COLUMNS]]
        busy_s = (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) * _TICK_S
        return busy_s - sum(map(_process_s, self._own)), ticks[_STOLEN] * _TICK_S


def _process_s(pid: int) -> float:
    """Processor time of all threads, in ticks; 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) * _TICK_S
