# pyright: strict
"""Pearson's chi-square test: p-values, and what a test of given size would have found.

The power is that for the direction which is hardest to see. For a total variation d the statistic's
noncentrality, n sum(delta^2 / p), is least when all probabilities change by the same factor, and is
then 4 n d^2 (Cauchy-Schwarz); every other distribution at that distance is found more often.
"""

import math
from collections.abc import Sequence

import msgspec

MIN_EXPECTED = 5.0  # draws in a cell, below which the statistic's distribution is not chi-square
_EPSILON = 1e-15
_MAX_TERMS = 100_000


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How well counts fit a distribution; `num_cells` after merging those too rare to judge."""

    statistic: float
    num_cells: int
    p_value: float

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return self.num_cells - 1


def goodness_of_fit(counts: Sequence[int], probs: Sequence[float]) -> Fit:
    """Counts [C] against probabilities [C] that sum to 1.

    The rarest cells are merged until `MIN_EXPECTED` draws are expected in each. A draw that the
    distribution calls impossible has p-value 0.
    """
    total = sum(counts)
    if any(count for count, prob in zip(counts, probs, strict=True) if prob <= 0):
        return Fit(statistic=math.inf, num_cells=len(counts), p_value=0.0)
    cells = _merged([(p * total, n) for n, p in zip(counts, probs, strict=True) if p > 0])
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    freedom = len(cells) - 1
    p_value = survival(statistic, freedom) if freedom else 1.0
    return Fit(statistic=statistic, num_cells=len(cells), p_value=p_value)


def survival(statistic: float, freedom: int, noncentrality: float = 0.0) -> float:
    """P(a chi-square variate exceeds `statistic`)."""
    if statistic <= 0:
        return 1.0
    if noncentrality <= 0:
        return _upper_gamma(freedom / 2, statistic / 2)
    # A Poisson mixture of central variates, of which only those near the mean weigh anything.
    mean = noncentrality / 2
    reach = 10 * math.sqrt(mean) + 40
    first, last = max(0, math.floor(mean - reach)), math.ceil(mean + reach)
    return math.fsum(
        math.exp(j * math.log(mean) - mean - math.lgamma(j + 1))
        * _upper_gamma(freedom / 2 + j, statistic / 2)
        for j in range(first, last + 1)
    )


def critical_value(freedom: int, false_alarms: float) -> float:
    """The statistic that a sound distribution exceeds with probability `false_alarms`."""
    low, high = 0.0, 1.0
    while survival(high, freedom) > false_alarms:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, freedom) > false_alarms else (low, middle)
    return high


def power(num_samples: int, freedom: int, distance: float, false_alarms: float) -> float:
    """P(a distribution at a total variation of `distance` is found by these samples), at least."""
    noncentrality = 4 * num_samples * distance**2
    return survival(critical_value(freedom, false_alarms), freedom, noncentrality)


def _merged(cells: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """(expected, count) of cells, the rarest ones put together.

    Counts have no say in who is put together, not even among equally rare ones: sound distributions
    would look worse than they are.
    """
    kept = sorted(cells, key=_expected, reverse=True)
    while len(kept) > 1 and kept[-1][0] < MIN_EXPECTED:
        (expected, count), (more, others) = kept.pop(), kept.pop()
        kept.append((expected + more, count + others))
        kept.sort(key=_expected, reverse=True)
    return kept


def _expected(cell: tuple[float, int]) -> float:
    return cell[0]


def _upper_gamma(shape: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(shape, x), to about 1e-12."""
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return 1.0 - scale * _series(shape, x)
    return scale * _continued_fraction(shape, x)


def _series(shape: float, x: float) -> float:
    """sum of x^n / (shape (shape + 1) ... (shape + n)): converges fast below the mean."""
    term = total = 1 / shape
    for n in range(1, _MAX_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:
            break
    return total


def _continued_fraction(shape: float, x: float) -> float:
    """1 / (x + 1 - s - 1 (1 - s) / (x + 3 - s - ...)), by its convergents, above the mean."""
    # Convergents A / B grow without bound; only their ratio counts, so both are kept near 1.
    base = x + 1 - shape
    above, below, above_before, below_before = 1.0, base, 0.0, 1.0
    value = above / below
    for n in range(1, _MAX_TERMS):
        base += 2
        factor = n * (shape - n)
        above, above_before = base * above + factor * above_before, above
        below, below_before = base * below + factor * below_before, below
        size = abs(below) or 1.0
        above, below = above / size, below / size
        above_before, below_before = above_before / size, below_before / size
        before, value = value, above / below
        if abs(value - before) < abs(value) * _EPSILON:
            break
    return value
