"""How long a draft batch of so many blocks takes, learned from those that were drafted.

Seconds = a + b * blocks, by least squares over the latest draft batches. A draft batch that would
end after the target has looked for it brings nothing and makes the next round's first draft batch
late, so draft batches are cut to the time that is left. Receives counts and times, never tokens.
"""

_KEPT = 0.97  # of every earlier draft batch's weight, with each new one
_MARGIN = 0.9  # of the time that is left may be filled
_LEAST_SPREAD = 0.25  # blocks squared: below it nothing is known of the slope
_TINY_S = 1e-6
_FIXED = 6.0  # blocks' worth of what every draft batch costs, until more is known


class BatchCost:
    """Of the draft batches of one family."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._blocks = 0.0  # means
        self._seconds = 0.0
        self._blocks_var = 0.0
        self._covariance = 0.0

    def observe(self, num_blocks: int, seconds: float) -> None:
        """One draft batch."""
        self._weight = _KEPT * self._weight + 1
        share = 1 / self._weight
        by_blocks, by_seconds = num_blocks - self._blocks, seconds - self._seconds
        self._blocks += share * by_blocks
        self._seconds += share * by_seconds
        self._blocks_var += share * ((1 - share) * by_blocks**2 - self._blocks_var)
        self._covariance += share * ((1 - share) * by_blocks * by_seconds - self._covariance)

    def largest_within(self, seconds: float) -> float:
        """How many blocks a draft batch may have to be over in time; 0 or less: none."""
        if not self.is_known:
            return float("inf")
        return self._blocks + (_MARGIN * seconds - self._seconds) / self._slope

    def seconds(self, num_blocks: int) -> float:
        """How long so many are believed to take; of a cost that is known."""
        return max(_TINY_S, self._seconds + (num_blocks - self._blocks) * self._slope)

    @property
    def is_known(self) -> bool:
        """Whether any draft batch was observed."""
        return self._weight > 0 and self._seconds > 0

    @property
    def _slope(self) -> float:
        """Seconds that a block more costs."""
        usual = self._seconds / (self._blocks + _FIXED)
        if self._blocks_var > _LEAST_SPREAD:
            return max(usual / 10, self._covariance / self._blocks_var)
        return usual
