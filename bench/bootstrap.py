# pyright: strict
"""Rates over prompts, with bootstrap intervals: the prompt is what is drawn again, never a round.

Rounds of one text resemble each other, so an interval over rounds would be too narrow. A rate is a
sum over a sum: tokens over rounds, tokens over seconds. Of two rates on the same prompts the same
draws are taken, so that a hard prompt meets both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.stats import LEVEL, NUM_RESAMPLES

Floats = NDArray[np.float64]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its 95 % bootstrap interval over `num_prompts` prompts."""

    value: float
    low: float
    high: float
    num_prompts: int


@dataclass(frozen=True)
class Rate:
    """What two quantities came to on each of N prompts; the rate is the ratio of their sums."""

    over: Floats
    under: Floats

    @staticmethod
    def of(pairs: Sequence[tuple[float, float]]) -> "Rate":
        """From (over, under) of every prompt."""
        table = np.array(pairs, dtype=np.float64).reshape(len(pairs), 2)
        return Rate(table[:, 0], table[:, 1])

    @property
    def num_prompts(self) -> int:
        return len(self.over)

    @property
    def value(self) -> float:
        return float(self.over.sum() / self.under.sum())

    def resampled(self, draws: Floats) -> Floats:
        """The rate for each row of `draws` [R, N], how often each prompt was drawn."""
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw without any `under`
            return (draws @ self.over) / (draws @ self.under)


def interval(rate: Rate) -> Interval:
    """Of one rate. ValueError where there is nothing to divide by."""
    _refuse_empty(rate)
    draws = _draws(rate.num_prompts, np.random.default_rng(0))
    return _interval(rate.value, rate.resampled(draws), rate.num_prompts)


def ratio(over: Rate, under: Rate) -> Interval:
    """Of two rates on the same prompts."""
    return mean_ratio([(over, under)])


def mean_ratio(pairs: Sequence[tuple[Rate, Rate]]) -> Interval:
    """The mean over domains of the ratio of two rates, each pair on the prompts of its domain.

    Every domain counts alike and is drawn again by itself. ValueError for no pairs, or two rates
    of different prompts.
    """
    if not pairs:
        raise ValueError("no rates to compare")
    generator = np.random.default_rng(0)  # the same figures from the same measurements
    values: list[float] = []
    resampled: list[Floats] = []
    for over, under in pairs:
        if over.num_prompts != under.num_prompts:
            raise ValueError(f"{over.num_prompts} prompts against {under.num_prompts}")
        _refuse_empty(over)
        _refuse_empty(under)
        draws = _draws(over.num_prompts, generator)
        values.append(over.value / under.value)
        resampled.append(over.resampled(draws) / under.resampled(draws))
    num_prompts = sum(over.num_prompts for over, _ in pairs)
    return _interval(float(np.mean(values)), np.mean(resampled, axis=0), num_prompts)


def _refuse_empty(rate: Rate) -> None:
    if not rate.under.sum() > 0:
        raise ValueError("a rate over nothing")


def _draws(num_prompts: int, generator: np.random.Generator) -> Floats:
    shares = np.full(num_prompts, 1 / num_prompts)
    return generator.multinomial(num_prompts, shares, size=NUM_RESAMPLES).astype(np.float64)


def _interval(value: float, resampled: Floats, num_prompts: int) -> Interval:
    tail = (1 - LEVEL) / 2
    known = resampled[np.isfinite(resampled)]
    low, high = (float(np.quantile(known, share)) for share in (tail, 1 - tail))
    return Interval(value=value, low=low, high=high, num_prompts=num_prompts)
