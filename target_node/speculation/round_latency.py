"""How long a draft has: the time from a report to the look at what came of it.

Said to the draft processes, which cut their draft batches and chains to it. One that counts on more
is late, which costs a hit; one that counts on less drafts less than it could. When the report goes
out it is known how many tokens the round computes, and what a token adds is measured: what remains
is what rounds take whatever their size, and of the latest of them that is the median, since a few
take long for other reasons.
"""

import time
from collections import deque
from collections.abc import Iterable

from target_node.planning.token_times import TokenTimes

_KEPT = 9  # latest rounds
_RANK = 4  # of them, from the shortest
_LEAST_S = 1e-4  # 0 would mean that nobody knows
_LONGEST_S = 1.0  # a pause is no round


class RoundLatency:
    """Of the rounds of one target."""

    def __init__(self, turning_point: float) -> None:
        """`turning_point`: see `Backend`."""
        # Rounds that read prompts besides are another matter: many tokens, few of them sampled.
        self._usual, self._mixed = _Rounds(turning_point), _Rounds(turning_point)
        self._sent_s = 0.0  # of the last report; 0: none is waiting for a look
        self._rounds, self._num_tokens = self._usual, 0  # of its round

    def reported(self, num_tokens: int, *, is_mixed: bool = False) -> None:
        """A report goes out now, of a round that computes so many tokens."""
        self._rounds = self._mixed if is_mixed else self._usual
        self._num_tokens, self._sent_s = num_tokens, time.perf_counter()

    @property
    def sent_s(self) -> float:
        """When the last report went out; 0 if it was looked at."""
        return self._sent_s

    @property
    def seconds(self) -> float:
        """From the last report to its look; 0 if nothing is known yet."""
        if not self._rounds.is_known:
            return self._usual.median()  # of fewer tokens: early, which is safe
        return self._rounds.expected(self._num_tokens)

    def looked(self) -> None:
        """What comes from now on is late for this round."""
        if not self._sent_s:
            return
        taken_s, self._sent_s = time.perf_counter() - self._sent_s, 0.0
        if taken_s < _LONGEST_S:
            self._rounds.add(self._num_tokens, taken_s)


class _Rounds:
    """Rounds of one kind."""

    def __init__(self, turning_point: float) -> None:
        self._times = TokenTimes(turning_point)
        self._latest: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # tokens, seconds

    @property
    def is_known(self) -> bool:
        return bool(self._latest)

    def add(self, num_tokens: int, seconds: float) -> None:
        self._times.add(num_tokens, seconds)
        self._latest.append((num_tokens, seconds))

    def expected(self, num_tokens: int) -> float:
        """Seconds that a round of so many tokens takes."""
        slope = self._times.slope
        return max(_LEAST_S, _median(s + slope * (num_tokens - n) for n, s in self._latest))

    def median(self) -> float:
        """Seconds of a round of any size; 0 if none is known."""
        return _median(taken_s for _, taken_s in self._latest) if self._latest else 0.0


def _median(seconds: Iterable[float]) -> float:
    ranked = sorted(seconds)
    return ranked[min(_RANK, (len(ranked) - 1) // 2)]
