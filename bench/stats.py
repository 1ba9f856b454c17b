# pyright: strict
"""Medians, and ratios of two arms measured side by side, with bootstrap intervals."""

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

NUM_RESAMPLES = 4000
LEVEL = 0.95


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio over `num_pairs` pairs, and the 95 % bootstrap interval of its median."""

    value: float
    low: float
    high: float
    num_pairs: int


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median of the pairs' ratios; resamples whole pairs.

    Pairs are neighbours in time, so what disturbs the machine for longer than one pair cancels.
    Raises ValueError for no pairs, or lists of different lengths.
    """
    if not numerators or len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators, {len(denominators)} denominators")
    ratios = np.array(numerators, dtype=np.float64) / np.array(denominators, dtype=np.float64)
    generator = np.random.default_rng(0)  # the same figures from the same measurements
    picks = generator.integers(0, len(ratios), size=(NUM_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    tail = (1 - LEVEL) / 2
    return Ratio(
        value=float(np.median(ratios)),
        low=float(np.quantile(medians, tail)),
        high=float(np.quantile(medians, 1 - tail)),
        num_pairs=len(ratios),
    )


def median(values: Sequence[float]) -> float:
    """Of at least one value."""
    return float(statistics.median(values))
