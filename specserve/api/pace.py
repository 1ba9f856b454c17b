# pyright: strict
"""When a place is free again: what a caller who is refused for want of one is told.

Knows when places became free, and nothing of who had them. Times are CLOCK_MONOTONIC seconds.
"""

import math
from collections import deque

_WINDOW_S = 10.0  # what is remembered
_LEAST_S, _MOST_S = 1, 60  # that anybody is told to wait


class Pace:
    """Places that become free one after another, and callers who wait for one of them each.

    Every refused caller is told a time of its own, at the pace at which places have become free
    lately: if all came back at once, all but one would be refused again.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._freed_s: deque[float] = deque()
        self._since_s = math.inf  # when all places were taken, if nothing has become free since
        self._promised_s = 0.0  # when the latest of the refused was told to come

    def freed(self, now_s: float) -> None:
        """A place is free."""
        self._freed_s.append(now_s)
        self._since_s = math.inf
        self._forget(now_s)

    def wait_s(self, now_s: float) -> int:
        """Whole seconds, 1 to 60, after which there should be a place for one more caller."""
        self._forget(now_s)
        self._since_s = min(self._since_s, now_s)
        latest = max(self._promised_s, now_s) + self._seconds_a_place(now_s)
        self._promised_s = min(latest, now_s + _MOST_S)
        return told_s(self._promised_s - now_s)

    def _seconds_a_place(self, now_s: float) -> float:
        """Of the window; where nothing has become free, what is the least by now.

        Whoever has a place has had it since then, and all of them are served side by side.
        """
        if not self._freed_s:
            return (now_s - self._since_s) / self._num_places
        return (now_s - self._freed_s[0]) / len(self._freed_s)

    def _forget(self, now_s: float) -> None:
        while self._freed_s and self._freed_s[0] < now_s - _WINDOW_S:
            self._freed_s.popleft()


def told_s(wait_s: float) -> int:
    """Whole seconds, 1 to 60, that a caller is told to wait."""
    return min(max(math.ceil(wait_s), _LEAST_S), _MOST_S)
