"""The outcomes of one row's round, in the order in which blocks are drafted for them.

Order and number come from probabilities and ranks alone (`fan_out`); which token has which rank is
decided before, inside each number of accepted tokens (`outcomes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draft_node.prespeculation.fan_out import NO_RANK, Counts, Floats, HitCurves, allocate
from draft_node.prespeculation.outcomes import NO_TOKEN, OutcomeKind, outcome_weights
from draft_node.prespeculation.speculation_cache import DraftedBlock
from specserve.transport.link.messages import RowReport

_Order = tuple[Counts, Counts, Floats, int]  # numbers accepted, ranks, values; how many are due
# P(a token stands) for a pending block that is not ours: it has no confidence.
_FOREIGN_CONFIDENCE = 0.5


@dataclass(frozen=True, slots=True)
class PendingBlock:
    """What the target verifies in a round, as far as outcomes can be told from it."""

    token_ids: tuple[int, ...]  # behind the anchor
    confidences: tuple[float, ...]
    num_slots: int  # prefixes, 0 to num_slots - 1 tokens long, after which candidates are known
    next_id: int  # our block's own token behind the longest of these prefixes, or `NO_TOKEN`
    is_ours: bool = True  # all its tokens are those of our block

    @property
    def verify_len(self) -> int:
        return len(self.token_ids)

    def excluded_ids(self) -> list[int]:
        """By slot: the token that was rejected there, if the outcome is that many accepted."""
        return [*self.token_ids, NO_TOKEN][: self.num_slots]


def pending_block(
    row: RowReport, block: DraftedBlock, prior: Sequence[float], max_slots: int
) -> PendingBlock:
    """What `row` verifies, seen through `block`, which was drafted after the same anchor.

    `prior` stands in for confidences where the drafter has none; `max_slots` is above 0.
    """
    ours = block.token_ids
    token_ids = tuple(row.block.tolist())
    verify_len = len(token_ids)
    # Our distributions follow our own path: of a foreign one they know what it has in common with
    # that, and what may stand where it leaves it.
    shared = _num_shared(token_ids, ours)
    known = block.confidences or tuple(prior)
    foreign = [_FOREIGN_CONFIDENCE] * (verify_len - shared)
    if foreign and shared < len(ours):
        foreign[0] = min(_FOREIGN_CONFIDENCE, 1 - known[shared])  # both cannot stand
    num_slots = min(shared + 1, len(ours), max_slots)
    next_id = ours[shared] if num_slots == shared + 1 else NO_TOKEN
    is_ours = not foreign and block.speculation_id > 0
    confidences = (*known[:shared], *foreign)
    return PendingBlock(token_ids, confidences, num_slots, next_id, is_ours)


def _num_shared(token_ids: Sequence[int], ours: Sequence[int]) -> int:
    """Of the pending tokens, from the first on."""
    count = 0
    for theirs, own in zip(token_ids, ours, strict=False):
        if theirs != own:
            break
        count += 1
    return count


@dataclass(slots=True)
class Plan:
    """The outcomes of a round, best first; some of them are drafted already."""

    pending: PendingBlock
    candidates: NDArray[np.int64]  # [S, R] ids by number accepted and rank
    num_accepted: NDArray[np.int64]  # [N] of each outcome
    ranks: NDArray[np.int64]  # [N]
    values: NDArray[np.float64]  # [N] probabilities
    num_due: int  # within the budget: the rest serves to fill draft batches
    num_taken: int = 0

    @property
    def is_due(self) -> bool:
        """Outcomes within the budget are left."""
        return self.num_taken < self.num_due

    @property
    def is_left(self) -> bool:
        return self.num_taken < len(self.values)

    @property
    def values_due(self) -> NDArray[np.float64]:
        """Of the outcomes that are left within the budget, best first."""
        return self.values[self.num_taken : self.num_due]

    @property
    def next_value(self) -> float:
        """The probability of what `take` would return."""
        return float(self.values[self.num_taken])

    def take(self) -> tuple[int, int]:
        """The best outcome that is left: number accepted, next token."""
        place = self.num_taken
        self.num_taken += 1
        number = int(self.num_accepted[place])
        return number, int(self.candidates[number, self.ranks[place]])

    def rank_of(self, number: int, token_id: int) -> int:
        """Where the token stood among the candidates, or `NO_RANK`."""
        found = np.flatnonzero(self.candidates[number] == token_id)
        return int(found[0]) if len(found) else NO_RANK


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans within one budget, on hit rates measured so far."""

    fan_out: int
    num_spare: int  # outcomes beyond the budget, to fill draft batches with
    curves: HitCurves

    def plan(self, kind: OutcomeKind, pending: PendingBlock, candidates: NDArray[np.int64]) -> Plan:
        """`candidates` [S, R]: `NO_TOKEN` where there is none."""
        weights = outcome_weights(pending.confidences, pending.verify_len, pending.num_slots)
        num_candidates = (candidates != NO_TOKEN).sum(axis=1)
        order = self._order(kind, pending, weights, num_candidates)
        return Plan(pending, candidates, *order)

    def _order(
        self, kind: OutcomeKind, pending: PendingBlock, weights: Floats, num_candidates: Counts
    ) -> _Order:
        rates = self.curves.rates(kind, pending.verify_len, num_candidates)
        fan_outs = allocate(weights, rates, self.fan_out)
        values = weights[:, None] * rates
        due = np.arange(rates.shape[1]) < fan_outs[:, None]
        # Those within the budget first, each part from the most probable one on.
        order = np.lexsort((-values.ravel(), ~due.ravel()))
        num_due = int(fan_outs.sum())
        order = order[rates.ravel()[order] > 0][: num_due + self.num_spare]
        num_accepted, ranks = np.divmod(order, rates.shape[1])
        return num_accepted, ranks, values.ravel()[order], num_due
