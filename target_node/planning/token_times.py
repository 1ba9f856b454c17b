# pyright: strict
"""What a token adds to the time of a round: a line through the latest rounds, time against tokens.

A forward of few tokens takes what its weights take to read, one of many what they take to
multiply, and in between every token adds to it. Receives counts and times, never tokens.
"""

SMOOTHING = 0.01  # weight of the newest round, once there were many
MOST = 1.5  # times what was expected is the most that a round counts: others may have had the core
# Tokens squared, over all rounds that count: until rounds have differed in size by as much, what
# was assumed beforehand counts more. A slope from less is lost in a tenth of noise.
_PRIOR_SQUARES = 6.0


class TokenTimes:
    """Running moments of the rounds of one load."""

    def __init__(self, turning_point: float) -> None:
        """`turning_point`: see `Backend`; as measured, or what is usual on such a device."""
        self.num_rounds = 0
        self._turning_point = turning_point
        self._num_tokens: float = 0.0  # means, ...
        self._seconds: float = 0.0
        self._variance: float = 0.0  # ... of tokens, ...
        self._covariance: float = 0.0  # ... and of tokens and seconds

    def add(self, num_tokens: int, seconds: float) -> None:
        """One round."""
        if self.num_rounds:
            off = num_tokens - self._num_tokens
            seconds = min(seconds, MOST * (self._seconds + max(0.0, off) * self.slope))
        self.num_rounds += 1
        weight = self.newest_weight
        more, longer = num_tokens - self._num_tokens, seconds - self._seconds
        self._num_tokens += weight * more
        self._seconds += weight * longer
        kept = 1 - weight
        self._variance = kept * (self._variance + weight * more * more)
        self._covariance = kept * (self._covariance + weight * more * longer)

    def expected(self, num_tokens: float) -> float:
        """Seconds that a round of so many tokens takes. After one round."""
        return max(0.0, self._seconds + self.slope * (num_tokens - self._num_tokens))

    @property
    def newest_weight(self) -> float:
        """Of the latest round in every mean."""
        return max(SMOOTHING, 1 / self.num_rounds)

    @property
    def slope(self) -> float:
        """Seconds that a token adds: none at least, its share of all at most. After one round."""
        assumed = self._seconds / (self._turning_point + self._num_tokens)
        prior = _PRIOR_SQUARES * self.newest_weight
        slope = (self._covariance + prior * assumed) / (self._variance + prior)
        return min(max(slope, 0.0), self._seconds / max(self._num_tokens, 1.0))
