# pyright: strict
"""Which rows of a round are drafted for, and how long their chains are: as many as pays.

What a row's drafts bring is what is usual of its kind, times how it has fared itself. Rows that
bring least are left out first. Where that leaves any out, all are drafted for now and then all the
same, as only rounds with drafts tell whether they pay (`draft_trials`).

Receives counts and times, never tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specserve.sampling.verification.admission import StepCosts
from target_node.planning.acceptance import FIRST, Acceptance, FrozenAcceptance, OwnAcceptance
from target_node.planning.draft_pace import DraftPace
from target_node.planning.draft_trials import DraftTrials
from target_node.planning.drafted_rounds import RowsToDraft
from target_node.scheduler import Row
from target_node.sequence import Sequence as TokenSequence

_STANDS = 4  # rounds of the same rows
_AS_GOOD = 0.99  # of the best speed: then all are drafted for


class Chosen(NamedTuple):
    """For one round."""

    rows: list[Row]  # that are drafted for
    chain_length: int = FIRST  # tokens, where the drafter has no confidences to end chains by


class RoundAhead(NamedTuple):
    """A round as it is known before it drafts."""

    candidates: list[Row]  # in which drafted tokens may be verified; at least one
    is_mixed: bool  # it reads prompts besides
    num_rows: int
    num_tokens: int  # without drafted ones: anchors, prompts
    costs: StepCosts
    drafts: DraftPace
    acceptance: FrozenAcceptance
    limit_of: Callable[[Row], int]  # tokens of a row that may be verified, whatever they are
    weights: Mapping[TokenSequence, float]  # how much tokens count of rows that are behind


class _Weighed(NamedTuple):
    """Candidates, and how many of them pay."""

    order: list[int]  # their places, those first whose blocks bring most
    every_length: int  # of chains, if all are drafted for
    num_paying: int
    best_length: int  # of chains, if those are that pay


class RowChooser:
    """Of one drafter that drafts before each forward."""

    def __init__(
        self,
        acceptance: Acceptance,
        drafts: DraftPace,
        kind_of: Callable[[TokenSequence], str],
        *,
        may_leave_out: bool,
    ) -> None:
        """`acceptance` and `drafts` are doubted before they decide again; `kind_of` verification.

        Unless it `may_leave_out` rows, all are drafted for.
        """
        self._acceptance, self._drafts, self._kind_of = acceptance, drafts, kind_of
        self._may_leave_out = may_leave_out
        self._own: dict[TokenSequence, OwnAcceptance] = {}
        self._trials: dict[int, DraftTrials] = {}  # by rows, in powers of two
        self._weighed = _Weighed([], FIRST, 0, FIRST)
        self._about: object = None  # what it was weighed for
        self._num_left = 0  # rounds that it stands

    def choose(self, ahead: RoundAhead) -> Chosen:
        """For a round that begins. A mixed one takes long anyway: nobody is left out."""
        candidates = ahead.candidates
        if not ahead.drafts.is_known:
            return Chosen(candidates)
        weighed = self._weighed_lately(ahead)
        if ahead.is_mixed or not self._may_leave_out:
            return Chosen(candidates, weighed.every_length)
        num_paying = weighed.num_paying
        if self._tries(ahead, pays=num_paying == len(candidates)):
            return Chosen(candidates, weighed.every_length)
        ranked = [candidates[place] for place in weighed.order]
        for row in ranked[num_paying:]:
            self._own_of(row.sequence).pass_over()
        return Chosen(ranked[:num_paying], weighed.best_length)

    def observe(
        self, sequence: TokenSequence, survivals: Sequence[float], num_accepted: float
    ) -> None:
        """Of a row that was drafted for: `survivals`, usual ones, of what was verified.

        Where nothing was, of the whole block, and what its confidences promise is what stands.
        """
        if sequence in self._own:
            self._own[sequence].observe(survivals, num_accepted)

    def forget(self, sequence: TokenSequence) -> None:
        """The sequence has ended."""
        self._own.pop(sequence, None)

    def _weighed_lately(self, ahead: RoundAhead) -> _Weighed:
        """What stands for some rounds of the same rows: it changes slowly, and takes a while."""
        about = [row.sequence for row in ahead.candidates], ahead.is_mixed, ahead.num_rows
        if about != self._about or not self._num_left:
            self._weighed, self._about, self._num_left = self._weigh(ahead), about, _STANDS
        self._num_left -= 1
        return self._weighed

    def _weigh(self, ahead: RoundAhead) -> _Weighed:
        order, to_draft = self._ranked(ahead)
        seconds, num_candidates = ahead.costs.seconds, len(order)
        every = best = to_draft.best(ahead.drafts, seconds, counts=[num_candidates])
        if num_candidates > 1 and self._may_leave_out:
            best = to_draft.best(ahead.drafts, seconds)
            best = every if every.speed >= _AS_GOOD * best.speed else best
        num_paying = best.num_rows if to_draft.pays(best, seconds) else 0
        return _Weighed(order, every.num_drafted, num_paying, best.num_drafted)

    def _ranked(self, ahead: RoundAhead) -> tuple[list[int], RowsToDraft]:
        """Places of the candidates, those first whose blocks bring most; what these bring."""
        rows, acceptance = ahead.candidates, ahead.acceptance
        kinds = [self._kind_of(row.sequence) for row in rows]
        standing = {kind: np.cumsum(acceptance.survivals(kind)) for kind in set(kinds)}
        covered = {kind: acceptance.coverage(kind) for kind in standing}
        weights = ahead.weights
        factors = [
            self._own_of(row.sequence).factor * weights.get(row.sequence, 1.0) for row in rows
        ]
        brought = np.array([f * standing[kind] for f, kind in zip(factors, kinds, strict=True)])
        shares = np.array([covered[kind] for kind in kinds])
        longest = brought.shape[1]
        wanted = [min(max(1, ahead.limit_of(row)), longest) for row in rows]
        limits = np.array(wanted, dtype=np.int64)
        for place, limit in enumerate(wanted):  # what is drafted behind it brings nothing more
            brought[place, limit:] = brought[place, limit - 1]
        order = np.argsort(-brought[:, -1] * shares, kind="stable")
        to_draft = RowsToDraft(
            ahead.num_rows, ahead.num_tokens, brought[order], shares[order], limits[order]
        )
        return order.tolist(), to_draft

    def _tries(self, ahead: RoundAhead, *, pays: bool) -> bool:
        """Whether all rows are drafted for: because that `pays`, or to find out whether it does."""
        trials = self._trials.setdefault(ahead.num_rows.bit_length(), DraftTrials())
        drafts_all = trials.drafts(pays=pays)
        if drafts_all and trials.begins:
            self._drafts.doubt()
            for kind in {self._kind_of(row.sequence) for row in ahead.candidates}:
                self._acceptance.doubt(kind)
        return drafts_all

    def _own_of(self, sequence: TokenSequence) -> OwnAcceptance:
        return self._own.setdefault(sequence, OwnAcceptance())
