# pyright: strict
"""Verification policies: how many drafted tokens of a round are verified, and whose.

All rank places in one order (`by_survival`); they differ in how many there are. The throughput that
they make largest is DSpark's Theta(K) = (rows + survivals of the K places) / seconds of the forward
(section 3.2.2), in tokens a second. Survivals of rows that are behind what they ask for count for
more (`RoundFacts.weights`), anchors never do. What each policy is exact for is said where it is
chosen (`EXACT_FOR`): see docs/decisions/0033-verification-policies.md.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specserve.sampling.verification.admission import (
    NOTHING,
    Allocator,
    RoundFacts,
    StepCosts,
)
from specserve.sampling.verification.method import VerificationMethod

Survivals = Sequence[Sequence[float]]
Weights = Sequence[float]  # by row; empty: all count once


class Places(NamedTuple):
    """Drafted tokens of a forward, in the order in which they get room."""

    survivals: NDArray[np.float64]  # [N], times the weights of their rows
    rows: NDArray[np.int64]  # [N]
    positions: NDArray[np.int64]  # [N], within their rows' blocks


_TRY_EVERY = 16

_ALL = frozenset(VerificationMethod)
_COUPLED = frozenset({VerificationMethod.COUPLED})
EXACT_FOR = {
    "fixed": _ALL,
    "threshold": _ALL,
    "price": _ALL,
    "causal": _ALL,
    "barrier": _ALL,
    "global": _COUPLED,  # and greedy rows, which are coupled ones
}


def by_survival(survivals: Survivals, weights: Weights = ()) -> Places:
    """All places that may be worth something, the likeliest first, by the weights of their rows.

    Equals go by position, then by row. Survival falls along a row, so that no place of a row comes
    before an earlier one of it. Rows stand in an order that the caller turns every round.
    """
    falling = _falling(survivals)
    rows, positions = falling.nonzero()
    values = falling[rows, positions]
    if weights:
        values = values * np.array(weights)[rows]
    order = np.lexsort((rows, positions, -values))
    return Places(values[order], rows[order], positions[order])


def _falling(survivals: Survivals) -> NDArray[np.float64]:
    """[B, G] with zeros from the first that is zero or no number; none larger than the last."""
    found = np.zeros((len(survivals), max(map(len, survivals), default=0)))
    for own, values in zip(found, survivals, strict=True):
        own[: len(values)] = values
    found[~(found > 0)] = 0.0
    np.minimum(found, 1.0, out=found)
    return np.minimum.accumulate(found, axis=1) if found.size else found


def lengths_of(places: Places, count: int, num_rows: int) -> list[int]:
    """verify_len of every row that the first `count` places make: prefixes of its block."""
    return np.bincount(places.rows[:count], minlength=num_rows).tolist()


def _throughputs(
    places: Places, num_rows: int, num_tokens: int, costs: StepCosts
) -> NDArray[np.float64]:
    """Tokens a second with none of the places, with the first, the first two ...; [N + 1]."""
    numbers = np.arange(len(places.rows) + 1)
    tokens = num_rows + np.concatenate(([0.0], np.cumsum(places.survivals)))
    return tokens / costs.seconds(num_tokens + numbers)


class ThresholdPolicy:
    """Positions whose survival reaches `least`, the likeliest first (DSpark, Figure 5).

    With 0 it is `fixed`: whatever is drafted.
    """

    compares_rows = False

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def allocate(
        self, survivals: Survivals, capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        return _above(survivals, self.least, capacity)


class PricePolicy:
    """Positions that bring more than a token costs at the snapshot's speed, the likeliest first.

    What a row brings counts by its weight, here and among the likeliest. Where no position does for
    long, one round in some verifies first tokens all the same: without forwards of other sizes a
    price that is wrong would stay so.
    """

    compares_rows = False

    def __init__(self) -> None:
        self._num_empty = 0  # rounds

    def allocate(
        self, survivals: Survivals, capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        verify_lens = _above(survivals, facts.snapshot.token_price, capacity, facts.weights)
        if any(verify_lens):
            return verify_lens
        # First tokens know no other token of this round, so neither does the number of such rounds.
        self._num_empty += 1
        if self._num_empty % _TRY_EVERY:
            return verify_lens
        return _above([row[:1] for row in survivals], 0.0, capacity, facts.weights)


class CausalPolicy:
    """DSpark's Algorithm 1: places are taken in order until one does not pay.

    What follows the first that does not pay is never asked, so that the last place taken knows of
    no token behind it: the early stop is what makes it exact under the ratio test (Appendix A).
    """

    compares_rows = True

    def allocate(
        self, survivals: Survivals, capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        places, num_rows = by_survival(survivals, facts.weights), len(survivals)
        num_anchors = max(facts.num_rows, num_rows)
        made = _throughputs(places, num_anchors, facts.num_tokens, facts.snapshot.costs)
        stops = np.flatnonzero(~(made[1:] > made[:-1]))
        taken = int(stops[0]) if len(stops) else len(places.rows)
        return lengths_of(places, min(taken, capacity), num_rows)


class BarrierPolicy:
    """The asynchronous barrier (DSpark, section 5.2): K from the confidences of two rounds before.

    K is the best of all numbers of places, for the rows of this round as their blocks were then:
    nothing of that knows a token of this round's blocks. Current survivals only rank who gets the
    places. Anchors are tokens of the forward, and none of the K.
    """

    compares_rows = True

    def allocate(
        self, survivals: Survivals, capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        num_rows = max(facts.num_rows, len(survivals))
        count = best_count(facts.before, num_rows, facts.num_tokens, facts)
        places = by_survival(survivals, facts.weights)
        return lengths_of(places, min(count, capacity), len(survivals))


class GlobalPolicy:
    """The best number of places by current confidences: exact where tokens stand by equality.

    Rows under the ratio test get theirs from `others` first, which has to be exact for them, and
    the search sees the confidences of the other rows alone.
    """

    compares_rows = False  # rows under the ratio test get theirs by a price

    def __init__(self) -> None:
        self._others = PricePolicy()

    def allocate(
        self, survivals: Survivals, capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        by_ratio = facts.by_ratio or [False] * len(survivals)
        fixed = [row if is_ratio else () for row, is_ratio in zip(survivals, by_ratio, strict=True)]
        free = [() if is_ratio else row for row, is_ratio in zip(survivals, by_ratio, strict=True)]
        verify_lens = self._others.allocate(fixed, capacity, facts) if any(by_ratio) else []
        num_fixed = sum(verify_lens)
        num_rows = max(facts.num_rows, len(survivals))
        count = best_count(free, num_rows, facts.num_tokens + num_fixed, facts)
        places = by_survival(free, facts.weights)
        found = lengths_of(places, min(count, capacity - num_fixed), len(survivals))
        return [a + b for a, b in zip(found, verify_lens, strict=True)] if verify_lens else found


def best_count(survivals: Survivals, num_rows: int, num_tokens: int, facts: RoundFacts) -> int:
    """How many of the likeliest places make most tokens a second; the fewest of equals.

    Places are added to a forward of `num_tokens`; costs and weights are those of `facts`. All
    numbers are looked at: costs are stairs (graph buckets, tiles), and a step that does not pay may
    lie before one that does.
    """
    places = by_survival(survivals, facts.weights)
    made = _throughputs(places, num_rows, num_tokens, facts.snapshot.costs)
    return int(made.argmax())


def _above(survivals: Survivals, least: float, capacity: int, weights: Weights = ()) -> list[int]:
    leasts = [least / weight for weight in weights] or [least] * len(survivals)
    worthy = [_leading(row, own) for row, own in zip(survivals, leasts, strict=True)]
    if sum(worthy) <= capacity:
        return worthy
    cut = [row[:length] for row, length in zip(survivals, worthy, strict=True)]
    return lengths_of(by_survival(cut, weights), capacity, len(survivals))


def _leading(survival: Sequence[float], least: float) -> int:
    """How many positions from the first on reach `least`."""
    for k, value in enumerate(survival):
        if not value >= least:
            return k
    return len(survival)


def policy_named(name: str, least: float | None = None) -> Allocator:
    """The policy of a setting; `least` is the threshold's."""
    if name == "threshold":
        return ThresholdPolicy(least or 0.0)
    return _POLICIES[name]()


_POLICIES: dict[str, Callable[[], Allocator]] = {
    "fixed": ThresholdPolicy,
    "price": PricePolicy,
    "causal": CausalPolicy,
    "barrier": BarrierPolicy,
    "global": GlobalPolicy,
}
