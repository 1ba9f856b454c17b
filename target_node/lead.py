"""How long a draft has: the time from a report to the look at what came of it.

Said to the draft processes, which cut their waves and chains to it. Rounds that carry prompts take
many times as long as others, and a draft that counts on one is late, which costs a hit; one that is
early drafts less than it could. Hence the median of the latest rounds.
"""

import time
from collections import deque

_KEPT = 9  # latest rounds
_RANK = 4  # of them, from the shortest
_LONGEST_S = 1.0  # a pause is no round


class Lead:
    """Of the rounds of one target."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_KEPT)
        self._sent_s = 0.0  # of the last report; 0: none is waiting for a look

    @property
    def seconds(self) -> float:
        """0 if nothing is known yet."""
        if not self._latest:
            return 0.0
        return sorted(self._latest)[min(_RANK, (len(self._latest) - 1) // 2)]

    def reported(self) -> None:
        """A report goes out now."""
        self._sent_s = time.perf_counter()

    def looked(self) -> None:
        """What comes from now on is late for this round."""
        if not self._sent_s:
            return
        taken_s, self._sent_s = time.perf_counter() - self._sent_s, 0.0
        if taken_s < _LONGEST_S:
            self._latest.append(taken_s)
