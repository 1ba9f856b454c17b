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
from target_node.planning.drafted_rounds import ExpectedDrafts
from target_node.scheduler import Row
from target_node.sequence import Sequence as TokenSequence

_STANDS = 4  # rounds of the same rows
_AS_GOOD = 0.99  # of the best speed: then all are drafted for


class Chosen(NamedTuple):
    """For one round."""

    rows: list[Row]  # that are drafted for
    chain_length: int = FIRST  # tokens, where the drafter has no confidences to end chains by


class UpcomingRound(NamedTuple):
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
    length_of_all: int  # of chains, if all are drafted for
    num_paying: int
    length_of_paying: int  # ..., if those are that pay


class RowChooser:
    """Of one drafter that drafts before each forward."""

    def __init__(
        self,
        acceptance: Acceptance,
        drafts: DraftPace,
        kind_of: Callable[[TokenSequence], str],
        *,
        may_leave_out: bool,
        are_blind: bool = True,
    ) -> None:
        """`acceptance` and `drafts` are doubted before they decide again; `kind_of` verification.

        Unless it `may_leave_out` rows, all are drafted for. Chains that `are_blind` are as long as
        is chosen here; others end by their confidences.
        """
        self._acceptance, self._drafts, self._kind_of = acceptance, drafts, kind_of
        self._may_leave_out, self._are_blind = may_leave_out, are_blind
        self._own: dict[TokenSequence, OwnAcceptance] = {}
        self._trials: dict[int, DraftTrials] = {}  # by rows, in powers of two
        self._weighed = _Weighed([], FIRST, 0, FIRST)
        self._about: object = None  # what it was weighed for
        self._num_left = 0  # rounds that it stands
        self._latest: DraftTrials | None = None  # those of the latest round, if it asked them

    def choose(self, ahead: UpcomingRound) -> Chosen:
        """For a round that begins. A mixed one takes long anyway: nobody is left out."""
        candidates, self._latest = ahead.candidates, None
        if not ahead.drafts.is_known or not (self._may_leave_out or self._are_blind):
            return Chosen(candidates)
        weighed = self._weighed_lately(ahead)
        if ahead.is_mixed or not self._may_leave_out:
            return Chosen(candidates, weighed.length_of_all)
        num_paying = weighed.num_paying
        if self._tries(ahead, pays=num_paying == len(candidates)):
            return Chosen(candidates, weighed.length_of_all)
        ranked = [candidates[place] for place in weighed.order]
        for row in ranked[num_paying:]:
            self._own_of(row.sequence).pass_over()
        return Chosen(ranked[:num_paying], weighed.length_of_paying)

    def observe(
        self, sequence: TokenSequence, survivals: Sequence[float], num_accepted: float
    ) -> None:
        """Of a row that was drafted for: `survivals`, usual ones, of what was verified.

        Where nothing was, of the whole block, and what its confidences promise is what stands.
        """
        if sequence in self._own:
            self._own[sequence].observe(survivals, num_accepted)

    def repeat_trial(self) -> None:
        """Most rows of the latest round were not drafted for yet: their contexts caught up."""
        if self._latest is not None:
            self._latest.repeat()

    def forget(self, sequence: TokenSequence) -> None:
        """The sequence has ended."""
        self._own.pop(sequence, None)

    def _weighed_lately(self, ahead: UpcomingRound) -> _Weighed:
        """What stands for some rounds of the same rows: it changes slowly, and takes a while."""
        about = [row.sequence for row in ahead.candidates], ahead.is_mixed, ahead.num_rows
        if about != self._about or not self._num_left:
            self._weighed, self._about, self._num_left = self._weigh(ahead), about, _STANDS
        self._num_left -= 1
        return self._weighed

    def _weigh(self, ahead: UpcomingRound) -> _Weighed:
        expected, seconds = self._expected(ahead), ahead.costs.seconds
        num_candidates = len(ahead.candidates)
        every = best = expected.best(ahead.drafts, seconds, counts=[num_candidates])
        order = expected.by_worth(every.num_drafted)
        if num_candidates > 1 and self._may_leave_out:
            best = expected.ordered(order).best(ahead.drafts, seconds)
            best = every if every.speed >= _AS_GOOD * best.speed else best
        num_paying = best.num_rows if expected.pays(best, seconds) else 0
        return _Weighed(order, every.num_drafted, num_paying, best.num_drafted)

    def _expected(self, ahead: UpcomingRound) -> ExpectedDrafts:
        """What the candidates' blocks bring, in their order."""
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
        return ExpectedDrafts(ahead.num_rows, ahead.num_tokens, brought, shares, limits)

    def _tries(self, ahead: UpcomingRound, *, pays: bool) -> bool:
        """Whether all rows are drafted for: because that `pays`, or to find out whether it does."""
        trials = self._trials.setdefault(ahead.num_rows.bit_length(), DraftTrials())
        self._latest = trials
        drafts_all = trials.drafts(pays=pays)
        if drafts_all and trials.begins:
            self._drafts.doubt()
            for kind in {self._kind_of(row.sequence) for row in ahead.candidates}:
                self._acceptance.doubt(kind)
        return drafts_all

    def _own_of(self, sequence: TokenSequence) -> OwnAcceptance:
        return self._own.setdefault(sequence, OwnAcceptance())
