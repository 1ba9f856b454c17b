# pyright: strict
"""When to start one draft process again, and when its silence counts as a hang.

Pure: every time is an argument, in seconds of CLOCK_MONOTONIC. Knows no processes.

A death is followed by a pause that doubles up to `LONGEST_PAUSE_S` and starts anew once a life has
lasted `LONG_LIFE_S`; it is shorter where starts take long, so that a draft is back in time. Nothing
ends the attempts: the longest pause is the circuit breaker.
"""

import math

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
# Of whatever ended it, where a start takes no longer: of that, and not of the kill that a hang is
# answered with, somebody asks for 10 s, and joining the target takes one or two of them.
BACK_WITHIN_S = 8.0
LONG_LIFE_S = 60.0
FIRST_HEARTBEAT_S = 10.0  # from being ready to the first heartbeat
LEAVING_S = 5.0  # from the last heartbeat of one that is leaving
SECOND_LOOK_S = 0.1  # from the end of the limit; see `is_hung`
_SLOWER_START = 4  # a start under load may take so many times as long as the first one


class RestartBackOff:
    """What is known of the lives of one draft process."""

    def __init__(self, silence_limit_s: float) -> None:
        self.num_deaths = 0  # since the last long life
        self._silence_limit_s = silence_limit_s
        self._pause_s = FIRST_PAUSE_S
        self._started_s = 0.0
        self._ready_s: float | None = None
        self._start_took_s = math.inf  # of the slowest; the launch itself limits the first one
        self._suspected_s: float | None = None

    def started(self, now_s: float) -> None:
        """A new life begins."""
        self._started_s, self._ready_s, self._suspected_s = now_s, None, None

    def ready(self, now_s: float) -> None:
        """It has loaded what it needs; its loop, and with it the heartbeat, begins."""
        took_s = now_s - self._started_s
        known = math.isfinite(self._start_took_s)
        self._start_took_s = max(self._start_took_s, took_s) if known else took_s
        self._ready_s = now_s

    def died(self, now_s: float, silent_s: float = 0.0) -> float:
        """Seconds to wait before the next start of one that was last heard `silent_s` ago."""
        if now_s - self._started_s >= LONG_LIFE_S:
            self.num_deaths, self._pause_s = 0, FIRST_PAUSE_S
        self.num_deaths += 1
        pause_s = min(self._pause_s, BACK_WITHIN_S - silent_s - self._start_took_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return max(pause_s, FIRST_PAUSE_S)

    def is_hung(self, heartbeat_s: float, now_s: float, *, is_leaving: bool = False) -> bool:
        """Whether the process, last heard at `heartbeat_s` (0: never), should be killed.

        Only the second look in a row says so: where the whole machine stood still, the first one
        after it sees an old heartbeat of a process that has had no chance to make another.
        """
        if now_s < self._limit_s(heartbeat_s, now_s, is_leaving=is_leaving):
            self._suspected_s = None
            return False
        if self._suspected_s is None:
            self._suspected_s = now_s
        return now_s >= self._suspected_s + SECOND_LOOK_S

    def next_look_s(self, heartbeat_s: float, now_s: float, *, is_leaving: bool = False) -> float:
        """When `is_hung` may change its mind, from now on."""
        if self._suspected_s is not None:
            return self._suspected_s + SECOND_LOOK_S
        limit_s = self._limit_s(heartbeat_s, now_s, is_leaving=is_leaving)
        # A first heartbeat may come meanwhile: the limit is then much nearer, and nobody says so.
        return min(limit_s, now_s + self._silence_limit_s)

    def _limit_s(self, heartbeat_s: float, now_s: float, *, is_leaving: bool) -> float:
        """Silence is in order until then."""
        if self._started_s < heartbeat_s <= now_s:  # else from an earlier life, or no time at all
            return heartbeat_s + (LEAVING_S if is_leaving else self._silence_limit_s)
        if self._ready_s is not None:
            return self._ready_s + FIRST_HEARTBEAT_S
        return self._started_s + FIRST_HEARTBEAT_S + _SLOWER_START * self._start_took_s
