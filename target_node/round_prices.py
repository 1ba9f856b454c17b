# pyright: strict
"""What one more drafted token costs in a round, and what a round's time is worth: both measured.

A forward of few tokens takes what its weights take to read, one of many what they take to
multiply, and in between every token adds to it. Apart for each load (decoding rows, in powers of
two, alone or beside prompts) a line is fitted through the latest forwards, time against tokens. Its
slope, at the speed at which the service makes tokens now, is the price of a token in tokens. To
verify what is likelier than that to survive is what makes the speed largest (Dinkelbach: the best
ratio of tokens to time is the one at whose own rate no further token pays). DSpark's scheduler
(Algorithm 1) searches a table of steps a second instead; where the table is straight the answer is
the same, and no table is needed before the first request.

Receives counts and times, never tokens: a price says nothing of what was drawn in its round.
"""

import time

from specserve.drafting import Worth

# Tokens at which reading weights and multiplying take equally long, before anything was measured:
# a forward of n tokens takes 1 + n / that.
TURNING_POINT = {"cpu": 26.0, "cuda": 256.0}
_SMOOTHING = 0.01  # weight of the newest round, once there were many
_LEAST_ROUNDS = 4  # before anything is believed
_MOST = 1.5  # times what was expected is the most that a round counts: others may have had the core
# Tokens squared, over all rounds that count: until forwards have differed in size by as much, what
# was assumed beforehand counts more. A slope from less is lost in a tenth of noise.
_PRIOR_SQUARES = 6.0


class RoundPrices:
    """Of one way to draft. Call `begin`, `launch` and `observe` in every round that is to count."""

    def __init__(self, device_type: str) -> None:
        self._turning_point = TURNING_POINT[device_type]
        self._loads: dict[tuple[int, bool], _Load] = {}
        self._load: _Load = self._of(1, is_mixed=False)
        self._began_s = self._launched_s = 0.0
        self._num_tokens = 0

    def begin(self, num_decoding: int, *, is_mixed: bool = False) -> None:
        """A round of that many decoding rows begins; nothing is drafted yet.

        Prompts or parts of them are read in a mixed one besides.
        """
        self._load = self._of(num_decoding, is_mixed=is_mixed)
        self._began_s = time.perf_counter()

    def launch(self, num_tokens: int) -> None:
        """The forward of so many tokens begins."""
        self._num_tokens, self._launched_s = num_tokens, time.perf_counter()

    def observe(self, num_emitted: int) -> None:
        """The round is over, and made so many tokens."""
        now_s = time.perf_counter()
        self._load.add(
            self._num_tokens, now_s - self._launched_s, now_s - self._began_s, num_emitted
        )

    @property
    def worth(self) -> Worth:
        """Nothing costs anything before a few rounds were measured."""
        return self._load.worth

    def _of(self, num_decoding: int, *, is_mixed: bool) -> "_Load":
        load = (max(num_decoding, 1).bit_length(), is_mixed)
        return self._loads.setdefault(load, _Load(self._turning_point))


class _Load:
    """Running moments of the rounds of one load."""

    def __init__(self, turning_point: float) -> None:
        self._turning_point = turning_point
        self._num_rounds = 0
        self._num_tokens: float = 0.0  # means, ...
        self._forward_s: float = 0.0
        self._round_s: float = 0.0
        self._num_emitted: float = 0.0
        self._variance: float = 0.0  # ... of tokens, ...
        self._covariance: float = 0.0  # ... and of tokens and seconds

    def add(self, num_tokens: int, forward_s: float, round_s: float, num_emitted: int) -> None:
        if self._num_rounds:
            off = num_tokens - self._num_tokens
            forward_s = min(forward_s, _MOST * (self._forward_s + max(0.0, off) * self.slope))
            round_s = min(round_s, _MOST * self._round_s)
        self._num_rounds += 1
        weight = max(_SMOOTHING, 1 / self._num_rounds)
        more, longer = num_tokens - self._num_tokens, forward_s - self._forward_s
        self._num_tokens += weight * more
        self._forward_s += weight * longer
        kept = 1 - weight
        self._variance = kept * (self._variance + weight * more * more)
        self._covariance = kept * (self._covariance + weight * more * longer)
        self._round_s += weight * (round_s - self._round_s)
        self._num_emitted += weight * (num_emitted - self._num_emitted)

    @property
    def slope(self) -> float:
        """Seconds that a token adds to a forward: none at least, its share of all at most."""
        assumed = self._forward_s / (self._turning_point + self._num_tokens)
        prior = _PRIOR_SQUARES * max(_SMOOTHING, 1 / self._num_rounds)
        slope = (self._covariance + prior * assumed) / (self._variance + prior)
        return min(max(slope, 0.0), self._forward_s / max(self._num_tokens, 1.0))

    @property
    def worth(self) -> Worth:
        if self._num_rounds < _LEAST_ROUNDS or not self._round_s:
            return Worth(0.0, 0.0)
        tokens_per_s = self._num_emitted / self._round_s
        return Worth(tokens_per_s, tokens_per_s * self.slope)
