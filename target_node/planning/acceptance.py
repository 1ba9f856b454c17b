# pyright: strict
"""How likely drafted tokens stand: running averages by position, and products along a block.

And what follows from that for drafters that go token by token and have no confidences: how long
their chains are (`best_length`). Who has some ends its chains by them
(`specserve.drafters.chain_stopping`).

Receives counts and times alone, never tokens: see `specserve.sampling.verification.admission`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specserve.sampling.verification.admission import StepCosts
from target_node.planning.step_table import Line

FIRST = 5  # tokens, before a draft was timed
_CLOSE = 0.99  # of the best speed: the shortest of such lengths drafts and verifies least
_KEPT = 0.995  # a round, of what was seen of a position that is not looked at
_REMEMBERED = 1 - 1 / 512  # a token, of what was seen of a position that is


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
        product *= min(confidence, 1.0) if confidence > 0 else 0.0  # so is what is no number
        survival.append(product)
    return survival


class RoundAhead(NamedTuple):
    """A round, as far as it is known before it drafts."""

    num_rows: int  # that are drafted for
    num_tokens: int  # of its forward without drafted ones: anchors, prompts
    costs: StepCosts
    before: Line  # seconds until its forward, by tokens of a chain


def best_length(survivals: Sequence[float], ahead: RoundAhead) -> int:
    """At least 1, at most as many as there are `survivals`: usual ones, by position."""
    lengths = np.arange(1, len(survivals) + 1)
    tokens = ahead.num_rows * (1 + np.cumsum(survivals))
    seconds = ahead.costs.seconds(ahead.num_tokens + ahead.num_rows * lengths)
    seconds = seconds + ahead.before.fixed_s + lengths * ahead.before.token_s
    speeds = tokens / seconds
    return int(np.argmax(speeds >= _CLOSE * speeds.max())) + 1
