"""What a row does in a round without a pushed block: nothing, its own text, a draft here, or wait.

SSD's Theorem 17 compares two fall-backs at one load; here every term is measured while serving, so
the choice follows the load by itself. A round of R rows, M of them missed, makes in expectation

    SKIP        (R - M) * L      + M                 tokens in  T_verify
    NGRAM       (R - M) * L      + M * L_ngram       tokens in  T_verify + T_ngram
    DRAFT_HERE  (R - M) * L      + M * L_here        tokens in  T_verify + T_here
    DRAFT_NOW   (R - M) * L      + M * L_answered    tokens in  T_verify + T_wait

with L the tokens that a drafted row makes, and L_answered those of one that waited, in vain or not:
a block that was asked for is often longer than one that had to be ready before. Times are kept
apart by the number of rows concerned, in powers of two. Receives counts and times, never tokens.
"""

import enum
from collections import Counter
from collections.abc import Collection

_SMOOTHING = 0.05  # weight of the newest figure
_PROBE_EVERY = 64  # misses in which each fall-back is tried about once, ...
_FIRST_TRIES = 6  # ... after so many tries of each: whichever looked good first would stay so


class Miss(enum.StrEnum):
    """What to do with a row that has no block."""

    SKIP = "skip"
    NGRAM = "ngram"  # look in its own text
    DRAFT_HERE = "draft_here"  # by the drafter on the target's device
    DRAFT_NOW = "draft_now"  # by the draft process, while the target waits


# Before anything was measured: tokens accepted of a block, and seconds.
_PRIORS = {
    Miss.SKIP: (0.0, 0.0),
    Miss.NGRAM: (0.5, 0.0),
    Miss.DRAFT_HERE: (1.0, 0.0),
    Miss.DRAFT_NOW: (1.0, 0.0),
}
_PRIOR_VERIFY_S = 0.03


class MissPolicy:
    """Chooses by measured figures, or always the same where told so."""

    def __init__(
        self,
        *,
        fixed: Miss | None = None,
        kinds: Collection[Miss] = (Miss.NGRAM,),
        max_wait_s: float = 0.05,
    ) -> None:
        """`kinds`: what there is besides SKIP and DRAFT_NOW; `max_wait_s` bounds every wait."""
        self.max_wait_s = max_wait_s
        self._fixed = fixed
        self._kinds = tuple(miss for miss in Miss if miss in kinds)
        self._accepted = _Mean(1.0)  # tokens of a pushed block
        self._answered = _Mean(1.0)  # share of rows for which waiting brought a block
        self._accepted_by = {miss: _Mean(prior[0]) for miss, prior in _PRIORS.items()}
        self._verify_s: dict[int, _Mean] = {}  # by load
        self._cost_s: dict[tuple[Miss, int], _Mean] = {}  # by fall-back and load
        self._num_misses = 0
        self._num_tries: Counter[Miss] = Counter()

    def choose(self, *, num_missed: int, num_hits: int, can_wait: bool) -> Miss:
        """For all missed rows of a round alike; `can_wait`: drafts for all of them are there."""
        if self._fixed is not None:
            may = self._fixed is not Miss.DRAFT_NOW or can_wait
            return self._fixed if may else Miss.SKIP
        miss = self._best_or_tried(num_missed, num_hits, can_wait=can_wait)
        self._num_tries[miss] += 1
        return miss

    def _best_or_tried(self, num_missed: int, num_hits: int, *, can_wait: bool) -> Miss:
        self._num_misses += 1
        tries = [*self._kinds, Miss.DRAFT_NOW] if can_wait else list(self._kinds)
        rarest = min(tries, key=lambda miss: self._num_tries[miss], default=Miss.SKIP)
        if tries and self._num_tries[rarest] < _FIRST_TRIES:
            return rarest
        turn, is_between = divmod(self._num_misses, _PROBE_EVERY // (1 + len(tries)))
        if tries and not is_between:
            return tries[turn % len(tries)]
        speeds = {m: self._speed(m, num_missed, num_hits) for m in (Miss.SKIP, *tries)}
        return max(speeds, key=lambda miss: speeds[miss])

    def observe(self, kind: Miss | None, num_accepted: int) -> None:
        """One row that was to have a block; `kind`: how it came by it, None: it was there."""
        (self._accepted if kind is None else self._accepted_by[kind]).add(num_accepted)

    def verified(self, num_rows: int, seconds: float) -> None:
        """One round took so long, without what its misses cost before."""
        prior = _Mean(_PRIOR_VERIFY_S)
        self._verify_s.setdefault(_bucket(num_rows), prior).add(seconds)

    def spent(self, miss: Miss, num_missed: int, seconds: float) -> None:
        """A fall-back held up one round for so long."""
        self._cost(miss, num_missed).add(seconds)

    def answered(self, share: float) -> None:
        """One wait brought blocks for this share of its rows."""
        self._answered.add(share)

    def _speed(self, miss: Miss, num_missed: int, num_hits: int) -> float:
        """Tokens a second of a round."""
        accepted = self._accepted_by[miss].value
        if miss is Miss.DRAFT_NOW:
            accepted *= self._answered.value
        tokens = num_hits * (1 + self._accepted.value) + num_missed * (1 + accepted)
        verify_s = self._verify_s.get(_bucket(num_missed + num_hits))
        before_s = 0.0 if miss is Miss.SKIP else self._cost(miss, num_missed).value
        return tokens / ((_PRIOR_VERIFY_S if verify_s is None else verify_s.value) + before_s)

    def _cost(self, miss: Miss, num_missed: int) -> "_Mean":
        return self._cost_s.setdefault((miss, _bucket(num_missed)), _Mean(_PRIORS[miss][1]))


class _Mean:
    """The mean of a prior and the first figures, and then an exponential moving average."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._count = 1

    def add(self, figure: float) -> None:
        self._count += 1
        self.value += max(_SMOOTHING, 1 / self._count) * (figure - self.value)


def _bucket(num_rows: int) -> int:
    return max(num_rows, 1).bit_length()
