# pyright: strict
"""How many of a row's drafted tokens are verified: a threshold on survival, then places by rank.

Receives estimates alone, never tokens: see `specserve.sampling.verification.admission`.
"""

from collections.abc import Sequence

from target_node.planning.round_prices import RoundPrices

_KEPT = 0.995  # a round, of what was seen of a position that is not looked at
_REMEMBERED = 1 - 1 / 512  # a token, of what was seen of a position that is
_TRY_EVERY = 16


class SurvivalBudget:
    """`Allocator`: positions whose survival reaches `min_survival`, the likeliest ones first."""

    def __init__(self, min_survival: float = 0.0) -> None:
        self.min_survival = min_survival

    def allocate(self, survivals: Sequence[Sequence[float]], capacity: int) -> list[int]:
        worthy = [_leading(row, self.min_survival) for row in survivals]
        if sum(worthy) <= capacity:
            return worthy
        # Equals in the order of rows, which the caller turns: an order of its own would be state.
        places = sorted(
            (-survivals[r][k], k, r) for r, length in enumerate(worthy) for k in range(length)
        )
        verify_lens = [0] * len(worthy)
        # Survival falls along a row and ties go to the earlier position: no place is skipped.
        for _, _, row in places[:capacity]:
            verify_lens[row] += 1
        return verify_lens


class PricedBudget:
    """`Allocator`: positions that bring more than they cost in this round, the likeliest first.

    Where that is none for long, one round in some verifies first tokens all the same: without
    forwards of other sizes a price that is wrong would stay so.
    """

    def __init__(self, prices: RoundPrices) -> None:
        self._prices = prices
        self._num_empty = 0  # rounds

    def allocate(self, survivals: Sequence[Sequence[float]], capacity: int) -> list[int]:
        verify_lens = SurvivalBudget(self._prices.threshold.token_price).allocate(
            survivals, capacity
        )
        if any(verify_lens):
            return verify_lens
        # First tokens know no other token of this round, so neither does the number of such rounds.
        self._num_empty += 1
        if self._num_empty % _TRY_EVERY:
            return verify_lens
        return SurvivalBudget().allocate([row[:1] for row in survivals], capacity)


class AcceptanceHistory:
    """Running P(position k accepted | those before it were), for drafters without confidences.

    What is not looked at any more is forgotten: a position that is never verified because it was
    rejected once too often would else never get another chance. So is what was long ago of one that
    is: texts change, and a day of one kind would outweigh hours of another.
    """

    def __init__(self, gamma: int, *, prior: float = 0.7, weight: float = 16.0) -> None:
        """Starts as if `weight` tokens had been seen at each position, `prior` of them accepted."""
        self._prior, self._weight = prior, weight
        self._accepted = [prior * weight] * gamma
        self._seen = [weight] * gamma
        self._num_looked_at = 0  # positions in this round

    def settle(self) -> None:
        """A round of rows that were drafted for is over."""
        first = (1 - _KEPT) * self._weight
        for k in range(self._num_looked_at, len(self._seen)):
            self._seen[k] = _KEPT * self._seen[k] + first
            self._accepted[k] = _KEPT * self._accepted[k] + first * self._prior
        self._num_looked_at = 0

    def observe(self, verify_len: int, num_accepted: int) -> None:
        """One verified block; positions after the first rejection tell nothing."""
        num_verified = min(verify_len, num_accepted + 1)
        self._num_looked_at = max(self._num_looked_at, num_verified)
        for k in range(num_verified):
            self._seen[k] = _REMEMBERED * self._seen[k] + 1
            self._accepted[k] = _REMEMBERED * self._accepted[k] + (k < num_accepted)

    @property
    def confidences(self) -> list[float]:
        return [a / n for a, n in zip(self._accepted, self._seen, strict=True)]


def survival_of(confidences: Sequence[float]) -> list[float]:
    """Running products: P(positions 0..k are all accepted)."""
    survival: list[float] = []
    product = 1.0
    for confidence in confidences:
        product *= min(max(confidence, 0.0), 1.0)
        survival.append(product)
    return survival


def _leading(survival: Sequence[float], least: float) -> int:
    """How many positions from the first on reach `least`."""
    for k, value in enumerate(survival):
        if not value >= least:
            return k
    return len(survival)
