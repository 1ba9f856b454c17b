# pyright: strict
"""What planners are told of the chance that a drafted token stands: nothing, too much, or right.

A drafter's head knows the chance up to noise in its logit. Raw, it is sharper and surer than that
allows, as networks are; calibrated, it is the share of tokens with that score that stood, learned
from other texts (DSpark, section 3.2.1). Two that no drafter has are the limits: the chance itself,
and the outcome, which is only for simulations: who planned with it would change what is sampled.
"""

import enum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

_NUM_BINS = 20  # of equal numbers of tokens
_LEAST = 1e-6
_SURE = 0.999


class Belief(enum.StrEnum):
    """What a drafter's confidences are."""

    NONE = "none"  # it has none: running averages by position stand in
    RAW = "raw"
    CALIBRATED = "calibrated"
    EXACT = "exact"  # the chance itself
    ORACLE = "oracle"  # whether it stands


class Calibrated:
    """Confidences of one kind."""

    def __init__(self, belief: Belief, raw: tuple[float, float], noise: float) -> None:
        """`raw`: times the logit, plus; `noise`: standard deviation of what is seen of it."""
        self._belief = belief
        self._raw = raw
        self._noise = noise
        self._edges: Floats = np.empty(0)
        self._shares: Floats = np.empty(0)

    def fit(self, rng: np.random.Generator, chances: Floats) -> None:
        """Learn from as many tokens; each is drawn once."""
        scores = self._scores(rng, chances).ravel()
        stood = rng.random(scores.shape) < chances.ravel()
        order = np.argsort(scores, kind="stable")
        bins = np.array_split(order, _NUM_BINS)
        self._edges = np.array([scores[each[0]] for each in bins[1:]])
        shares = np.array([stood[each].mean() for each in bins])
        self._shares = np.maximum.accumulate(shares)  # the surer, the more stand

    def of(self, rng: np.random.Generator, chances: Floats, stands: Booleans) -> Floats | None:
        """[rows, tokens] as told."""
        if self._belief is Belief.NONE:
            return None
        if self._belief is Belief.EXACT:
            return chances
        if self._belief is Belief.ORACLE:
            return np.where(stands, _SURE, 1 - _SURE)
        scores = self._scores(rng, chances)
        if self._belief is Belief.CALIBRATED:
            return self._shares[np.searchsorted(self._edges, scores, side="right")]
        times, plus = self._raw
        return 1 / (1 + np.exp(-(times * scores + plus)))

    def _scores(self, rng: np.random.Generator, chances: Floats) -> Floats:
        inner = np.clip(chances, _LEAST, 1 - _LEAST)
        return np.log(inner / (1 - inner)) + self._noise * rng.standard_normal(chances.shape)


def calibration_error(told: Floats, stood: Booleans) -> float:
    """Expected calibration error over tenths, of tokens that were all looked at."""
    places = np.minimum(told.ravel() * 10, 9).astype(np.int64)
    off = np.bincount(places, told.ravel() - stood.ravel(), 10)
    return float(np.abs(off).sum() / told.size)
