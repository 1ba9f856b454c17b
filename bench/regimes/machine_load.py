# pyright: strict
"""Whether somebody else used the machine meanwhile. Linux only.

With a draft process the service has no core to spare: its own API process may keep the target
waiting, so that waiting says nothing of others. What all processes used less what ours used does.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME = 11  # fields of /proc/PID/stat after the name: user and system time
_IDLE, _IOWAIT = 3, 4  # columns of /proc/stat that are no work
_NUM_COLUMNS = 8  # up to stolen time; guests are counted under user already


class ForeignLoad:
    """Since it was made: the share of a core that processes other than `own` have used."""

    def __init__(self, own: Collection[int]) -> None:
        self._own = own
        self._start = self._now()

    def share(self) -> float:
        """Of one core: 1.0 is a core kept busy all the time. 0 for no time."""
        then_s, busy_s, own_s = (a - b for a, b in zip(self._now(), self._start, strict=True))
        return max(0.0, busy_s - own_s) / then_s if then_s > 0 else 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), _busy_s(), sum(map(_process_s, self._own))


def _busy_s() -> float:
    columns = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(column) for column in columns[:_NUM_COLUMNS]]
    return (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) * _TICK_S


def _process_s(pid: int) -> float:
    """Processor time of all threads; 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) * _TICK_S
