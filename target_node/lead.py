"""How long a draft has: the time from a report to the look at what came of it.

Said to the draft processes, which cut their waves and chains to it. One that counts on more is
late, which costs a hit; one that counts on less drafts less than it could. When the report goes out
it is known how many tokens the round computes, and what a token adds is measured: what remains is
what rounds take whatever their size, and of the latest of them that is the median, since a few take
long for other reasons.
"""

import time
from collections import deque

from target_node.token_times import TokenTimes

_KEPT = 9  # latest rounds
_RANK = 4  # of them, from the shortest
_LONGEST_S = 1.0  # a pause is no round


class Lead:
    """Of the rounds of one target."""

    def __init__(self, device_type: str) -> None:
        # Rounds that read prompts besides are another matter: many tokens, few of them sampled.
        self._usual, self._mixed = _Rounds(device_type), _Rounds(device_type)
        self._sent_s = 0.0  # of the last report; 0: none is waiting for a look
        self._rounds, self._num_tokens = self._usual, 0  # of its round

    def reported(self, num_tokens: int, *, is_mixed: bool = False) -> None:
        """A report goes out now, of a round that computes so many tokens."""
        self._rounds = self._mixed if is_mixed else self._usual
        self._num_tokens, self._sent_s = num_tokens, time.perf_counter()

    @property
    def seconds(self) -> float:
        """From the last report to its look; 0 if nothing is known yet."""
        known = self._rounds if self._rounds.is_known else self._usual
        return known.expected(self._num_tokens)

    def looked(self) -> None:
        """What comes from now on is late for this round."""
        if not self._sent_s:
            return
        taken_s, self._sent_s = time.perf_counter() - self._sent_s, 0.0
        if taken_s < _LONGEST_S:
            self._rounds.add(self._num_tokens, taken_s)


class _Rounds:
    """Rounds of one kind."""

    def __init__(self, device_type: str) -> None:
        self._times = TokenTimes(device_type)
        self._latest: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # tokens, seconds

    @property
    def is_known(self) -> bool:
        return bool(self._latest)

    def add(self, num_tokens: int, seconds: float) -> None:
        self._times.add(num_tokens, seconds)
        self._latest.append((num_tokens, seconds))

    def expected(self, num_tokens: int) -> float:
        """Seconds that a round of so many tokens takes."""
        if not self._latest:
            return 0.0
        slope = self._times.slope
        as_long = sorted(taken_s + slope * (num_tokens - n) for n, taken_s in self._latest)
        return max(0.0, as_long[min(_RANK, (len(as_long) - 1) // 2)])
