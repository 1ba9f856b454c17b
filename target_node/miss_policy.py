"""What a row does in a round without a pushed block: nothing, its own text, or a bounded wait.

SSD's Theorem 17 compares two fall-backs at one load; here every term is measured while serving, so
the choice follows the load by itself. A round of R rows, M of them missed, makes in expectation

    SKIP       (R - M) * L      + M                 tokens in  T_verify
    NGRAM      (R - M) * L      + M * L_ngram       tokens in  T_verify
    DRAFT_NOW  (R - M) * L      + M * L_answered    tokens in  T_verify + T_wait

with L the tokens that a drafted row makes, and L_answered those of one that
waited, in vain or not. Receives counts and times, never tokens.
"""

import enum

_SMOOTHING = 0.05  # weight of the newest figure
_PROBE_EVERY = 64  # misses between two tries of what is not measured enough


class Miss(enum.StrEnum):
    """What to do with a row that has no block."""

    SKIP = "skip"
    NGRAM = "ngram"
    DRAFT_NOW = "draft_now"


class MissPolicy:
    """Chooses by measured figures, or always the same where told so."""

    def __init__(
        self, *, fixed: Miss | None = None, has_lookup: bool = True, max_wait_s: float = 0.05
    ) -> None:
        """`max_wait_s` bounds every wait for a draft."""
        self.max_wait_s = max_wait_s
        self._fixed = fixed
        self._has_lookup = has_lookup
        self._accepted = _Mean(1.0)  # tokens of a pushed block
        self._accepted_lookup = _Mean(0.5)  # tokens of a block from the row's own text
        self._verify_s = _Mean(0.03)
        self._wait_s = _Mean(0.0)  # for the drafts of one round
        self._answered = _Mean(1.0)  # share of rows for which waiting brought a block
        self._num_misses = 0

    def choose(self, *, num_missed: int, num_hits: int, can_wait: bool) -> Miss:
        """For all missed rows of a round alike; `can_wait`: drafts for all of them are there."""
        if self._fixed is not None:
            possible = self._fixed is not Miss.DRAFT_NOW or can_wait
            return self._fixed if possible else Miss.SKIP
        self._num_misses += 1
        if self._has_lookup and self._num_misses % _PROBE_EVERY == 0:
            return Miss.NGRAM
        if can_wait and self._num_misses % _PROBE_EVERY == _PROBE_EVERY // 2:
            return Miss.DRAFT_NOW
        speeds = {Miss.SKIP: self._speed(num_missed, num_hits, 0.0, 0.0)}
        if self._has_lookup:
            speeds[Miss.NGRAM] = self._speed(num_missed, num_hits, self._accepted_lookup.value, 0.0)
        if can_wait:
            accepted, wait_s = self._answered.value * self._accepted.value, self._wait_s.value
            speeds[Miss.DRAFT_NOW] = self._speed(num_missed, num_hits, accepted, wait_s)
        return max(speeds, key=lambda miss: speeds[miss])

    def observe(self, kind: Miss | None, num_accepted: int) -> None:
        """One verified row: None for a pushed block, NGRAM for one of the row's own text."""
        (self._accepted if kind is None else self._accepted_lookup).add(num_accepted)

    def verified(self, seconds: float) -> None:
        """One round took so long, without any wait."""
        self._verify_s.add(seconds)

    def waited(self, seconds: float, share_answered: float) -> None:
        """One wait took so long, and brought blocks for a share of its rows."""
        self._wait_s.add(seconds)
        self._answered.add(share_answered)

    def _speed(self, num_missed: int, num_hits: int, accepted: float, wait_s: float) -> float:
        tokens = num_hits * (1 + self._accepted.value) + num_missed * (1 + accepted)
        return tokens / (self._verify_s.value + wait_s)


class _Mean:
    """An exponential moving average that starts at a prior."""

    def __init__(self, prior: float) -> None:
        self.value = prior

    def add(self, figure: float) -> None:
        self.value += _SMOOTHING * (figure - self.value)
