# pyright: strict
"""Rates over prompts, with bootstrap intervals: the prompt is what is drawn again, never a round.

Rounds of one text resemble each other, so an interval over rounds would be too narrow. A rate is a
sum over a sum: tokens over rounds, tokens over seconds. Of two rates on the same prompts the same
draws are taken, so that a hard prompt meets both.

Prompts that were measured side by side share what the machine did meanwhile. They can be given as
*clusters*: clusters are drawn first, then prompts of the drawn ones.
"""

from collections.abc import Callable, Hashable, Sequence
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


def against(least: float, value: float, high: float) -> str:
    """What a figure and the end of its interval say of a goal: missed if the whole interval is."""
    if high < least:
        return "missed"
    return "reached" if value >= least else "open: the interval holds the goal"


@dataclass(frozen=True)
class Rate:
    """What two quantities came to on each of N prompts; the rate is the ratio of their sums."""

    over: Floats
    under: Floats
    clusters: tuple[Hashable, ...] = ()  # of each prompt; none: every prompt is its own

    @staticmethod
    def of(pairs: Sequence[tuple[float, float]], clusters: Sequence[Hashable] = ()) -> "Rate":
        """From (over, under) of every prompt."""
        table = np.array(pairs, dtype=np.float64).reshape(len(pairs), 2)
        return Rate(table[:, 0], table[:, 1], tuple(clusters))

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
    return combined([rate], _itself)


def _itself(value: Floats) -> Floats:
    return value


def combined(rates: Sequence[Rate], combine: Callable[..., Floats]) -> Interval:
    """What `combine` makes of several rates on the same prompts, which get the same draws.

    It is called with one array for each rate, elementwise. ValueError where a rate has nothing to
    divide by, or other numbers of prompts.
    """
    for rate in rates:
        _refuse_empty(rate)
        if rate.num_prompts != rates[0].num_prompts:
            raise ValueError(f"{rates[0].num_prompts} prompts against {rate.num_prompts}")
    draws = _draws(rates[0].num_prompts, np.random.default_rng(0), rates[0].clusters)
    value = combine(*(np.array([rate.value]) for rate in rates))
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = combine(*(rate.resampled(draws) for rate in rates))
    return _interval(float(value[0]), resampled, rates[0].num_prompts)


def quantiles(
    values: Sequence[float], shares: Sequence[float], clusters: Sequence[Hashable] = ()
) -> list[Interval]:
    """The smallest value that at least this share of all values does not exceed, for each share.

    ValueError for no values.
    """
    if not values:
        raise ValueError("no values")
    in_order = np.argsort(values)
    heights = np.asarray(values, dtype=np.float64)[in_order]
    draws = _draws(len(values), np.random.default_rng(0), clusters)[:, in_order]
    counts = np.vstack([np.ones(len(values)), draws]).cumsum(
        axis=1
    )  # what was measured comes first
    found: list[Interval] = []
    for share in shares:
        wanted = share * counts[:, -1:] - 1e-9
        drawn = heights[(counts >= wanted).argmax(axis=1)]
        found.append(_interval(float(drawn[0]), drawn[1:], len(values)))
    return found


def ratio(over: Rate, under: Rate) -> Interval:
    """Of two rates on the same prompts."""
    return mean_ratio([(over, under)])


def mean_ratio(
    pairs: Sequence[tuple[Rate, Rate]], prompts: Sequence[Hashable] | None = None
) -> Interval:
    """The mean over pairs, such as domains, of the ratio of two rates. Every pair counts alike.

    `prompts` says on which prompts each pair is: pairs on the same ones get the same draws, as one
    prompt is hard for all of them. By default every pair has prompts of its own. ValueError for no
    pairs, or rates of different numbers of prompts where they should be the same.
    """
    if not pairs:
        raise ValueError("no rates to compare")
    generator = np.random.default_rng(0)  # the same figures from the same measurements
    values: list[float] = []
    resampled: list[Floats] = []
    draws: dict[Hashable, Floats] = {}  # [R, N] of each set of prompts
    for own, (over, under) in zip(prompts or range(len(pairs)), pairs, strict=True):
        if own not in draws:
            draws[own] = _draws(over.num_prompts, generator, over.clusters)
        num_prompts = draws[own].shape[1]
        for rate in (over, under):
            _refuse_empty(rate)
            if rate.num_prompts != num_prompts:
                raise ValueError(f"{num_prompts} prompts against {rate.num_prompts}")
        values.append(over.value / under.value)
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw of which nothing came
            resampled.append(over.resampled(draws[own]) / under.resampled(draws[own]))
    num_prompts = sum(each.shape[1] for each in draws.values())
    return _interval(float(np.mean(values)), np.mean(resampled, axis=0), num_prompts)


def _refuse_empty(rate: Rate) -> None:
    if not rate.under.sum() > 0:
        raise ValueError("a rate over nothing")


def _draws(
    num_prompts: int, generator: np.random.Generator, clusters: Sequence[Hashable] = ()
) -> Floats:
    """How often each prompt was drawn, [R, N]."""
    names = list(dict.fromkeys(clusters))
    if len(names) < 2:  # one cluster says nothing of others
        return _drawn(np.full(NUM_RESAMPLES, num_prompts), num_prompts, generator)
    times = _drawn(np.full(NUM_RESAMPLES, len(names)), len(names), generator)  # [R, C]
    draws = np.zeros((NUM_RESAMPLES, num_prompts))
    for place, name in enumerate(names):
        own = [at for at, cluster in enumerate(clusters) if cluster == name]
        counts = times[:, place].astype(np.int64) * len(own)
        draws[:, own] = _drawn(counts, len(own), generator)
    return draws


def _drawn(counts: NDArray[np.int64], num_choices: int, generator: np.random.Generator) -> Floats:
    """Of each row, `counts` [R] draws of so many choices, with replacement: [R, num_choices]."""
    shares = np.full(num_choices, 1 / num_choices)
    return generator.multinomial(counts, shares).astype(np.float64)


def _interval(value: float, resampled: Floats, num_prompts: int) -> Interval:
    tail = (1 - LEVEL) / 2
    known = resampled[np.isfinite(resampled)]
    low, high = (float(np.quantile(known, share)) for share in (tail, 1 - tail))
    return Interval(value=value, low=low, high=high, num_prompts=num_prompts)
