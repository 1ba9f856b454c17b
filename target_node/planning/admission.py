"""Which drafted tokens join a forward: the same for every source of drafts.

Blocks are dealt by lengths, places by survival, and neither ever by tokens. Also keeps what the
outcomes teach about acceptance, for drafters without confidences.
"""

import logging
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import NamedTuple

from specserve.drafters.protocol import StoppingThreshold
from specserve.sampling.grammar import worth_verifying
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.admission import (
    Allocator,
    PlanningSnapshot,
    RoundFacts,
    StepCosts,
)
from specserve.telemetry import VerifiedRow
from specserve.types import Speculation
from target_node.planning.acceptance import (
    Acceptance,
    FrozenAcceptance,
    LatestSurvivals,
    survival_of,
)
from target_node.planning.draft_pace import DraftPace
from target_node.planning.mode_speeds import verification_of
from target_node.planning.pace import weights_of
from target_node.planning.round_prices import FrozenPrices, RoundCosts
from target_node.planning.row_chooser import Chosen, RowChooser, UpcomingRound
from target_node.sampler import SampledRow, Sampler
from target_node.scheduler import Row, Scheduler
from target_node.sequence import Sequence
from target_node.speculation.drafting import RowToDraft, needs_probs

# Accepted drafted tokens, as a share of those verified, below which a drafter knows nothing of its
# target or little; the former is told after so many.
_NOTHING, _LITTLE, _MANY = 0.02, 0.1, 256

log = logging.getLogger(__name__)


class Admission:
    """Deals room for drafts, admits them, and looks at how they fared."""

    def __init__(
        self,
        *,
        acceptance: Acceptance,
        scheduler: Scheduler,
        sampler: Sampler,
        budget: Allocator,
        costs: RoundCosts | None = None,
        max_positions: int | None = None,
        is_asynchronous: bool = False,
    ) -> None:
        """`acceptance`: of drafted tokens; `costs`: what they cost, if anybody asks.

        Nothing is drafted at `max_positions` and beyond, which is what the drafter was made for.
        `is_asynchronous`: blocks are drawn while the round before theirs is verified, so that what
        is known of times and acceptance is written down before that begins.
        """
        self.gamma = acceptance.gamma  # drafted tokens of a block at most
        self._scheduler = scheduler
        self._sampler = sampler
        self._budget = budget
        self._prices = None if costs is None else costs.prices
        self._drafts = None if costs is None else costs.drafts
        self._chooser = None
        if costs is not None and costs.drafts is not None:
            self._chooser = RowChooser(
                acceptance,
                costs.drafts,
                self.kind,
                may_leave_out=costs.may_pause,
                are_blind=costs.are_blind,
            )
        self._max_positions = max_positions
        self._acceptance = acceptance
        self._is_asynchronous = is_asynchronous
        self._known = self._write_down(())  # what this round may read
        self._known_next: _Known | None = None  # ... and the next one, where it is another
        self._load: StoppingThreshold | None = None  # of this round, as it was known
        self._last_survivals: dict[Sequence, LatestSurvivals] = {}
        self._candidates: list[Row] = []  # rows that may verify something, in this round
        self._drafted_kinds: set[str] = set()  # of the rows with drafts in this round
        # Rows of this round with drafts of which none is verified, and what these promised.
        self._unverified: list[tuple[Sequence, Rows[float]]] = []
        self._num_rounds = 0  # in which somebody could be drafted for
        self.chosen = Chosen([])  # who of the candidates is drafted for: others' drafts do not pay
        self._has_paused = False  # in any round: nobody was drafted for
        self._num_verified = self._num_accepted = 0  # drafted tokens so far
        self._has_warned = False

    def begin(self, rows: list[Row]) -> list[Row]:
        """A round begins; those of its rows in which drafted tokens may be verified."""
        self._candidates = [row for row in rows if self._may_speculate(row)]
        self.chosen = Chosen(self._candidates)
        num_decoding = sum(row.sequence.is_decoding for row in rows)
        is_mixed = num_decoding < len(rows)
        if self._prices is not None:
            self._prices.begin(num_decoding, is_mixed=is_mixed)
        self._known = self._known_next or self._write_down(rows)
        if self._known.prices is not None:
            self._load = self._known.prices.of(num_decoding, is_mixed=is_mixed)
            if self._chooser is not None and self._candidates:
                self.chosen = self._chooser.choose(
                    self._ahead(rows, self._known.prices, is_mixed=is_mixed)
                )
        return self._candidates

    def _ahead(self, rows: list[Row], prices: FrozenPrices, *, is_mixed: bool) -> UpcomingRound:
        return UpcomingRound(
            candidates=self._candidates,
            is_mixed=is_mixed,
            num_rows=len(rows),
            num_tokens=sum(row.num_tokens for row in rows),
            costs=self._costs(rows, prices),
            drafts=self._known.drafts,
            acceptance=self._known.acceptance,
            limit_of=self._limit,
            weights=self._known.weights,
        )

    def kind(self, sequence: Sequence) -> str:
        """Of verification: what is accepted is another matter in each."""
        return verification_of(sequence, self._sampler.method(sequence))

    def _costs(self, rows: list[Row], prices: FrozenPrices) -> StepCosts:
        num_keys = sum(row.sequence.num_computed + row.num_tokens for row in rows)
        return prices.steps.at(len(rows), num_keys)

    def threshold(self, rows: list[Row], num_drafted: int) -> StoppingThreshold | None:
        """When chains stop in the round of `rows`; None: never for what a token costs.

        Where `num_drafted` blocks might compete for places, for want of room or since the policy
        holds rows against each other, no chain may end by what was drafted. All chains end
        together, so a token that ended its neighbours' would make room for itself, and by way of
        its place decide whether it is verified.
        """
        if self._load is None:
            return None
        has_room = num_drafted * self.gamma <= self._scheduler.room_for_drafts(rows)
        may_look = has_room and not self._budget.compares_rows
        return replace(self._load, may_look=may_look)

    def _may_speculate(self, row: Row) -> bool:
        """Whether drafted tokens may be verified in this round."""
        return row.sequence.is_decoding and self.may_go_on(row)

    def may_go_on(self, row: Row) -> bool:
        """Whether drafts are of use to the sequence, now or behind the token that a prompt yields.

        The last token that fits is the target's own: it needs no draft.
        """
        sequence = row.sequence
        num_own = 1 if sequence.is_decoding else 2
        return (
            row.samples
            and sequence.may_speculate
            and self.wants_drafts(sequence)
            and self._sampler.room(sequence) > num_own
        )

    def wants_drafts(self, sequence: Sequence) -> bool:
        """Whether the request allows drafts, and the drafter can draft behind what there is."""
        has_positions = self._num_positions(sequence) > 0
        return has_positions and sequence.request.max_verify_len != 0

    def to_draft(self, row: Row) -> RowToDraft:
        sequence = row.sequence
        return RowToDraft(sequence, self.state(sequence), self._sampler.method(sequence))

    def state(self, sequence: Sequence) -> SamplingState:
        """At the sequence's next token."""
        return self._sampler.state(sequence)

    def needs_probs(self, row: Row) -> bool:
        return needs_probs(self.to_draft(row))

    def _without_forbidden(self, row: Row, token_ids: tuple[int, ...]) -> int:
        grammar = self.state(row.sequence).grammar
        return worth_verifying(grammar, token_ids, by_ratio=self.needs_probs(row))

    def has_room(self, rows: list[Row]) -> bool:
        """Whether the forward of `rows` can take any drafted token besides."""
        return self._scheduler.room_for_drafts(rows) > 0

    def admit(self, rows: list[Row], found: Mapping[Sequence, Speculation]) -> list[Row]:
        """All `rows`, those with drafted tokens to verify replaced.

        Blocks are dealt by lengths alone, also to rows that leave them unused: a draft that took
        or left another row's blocks would, by way of that row's places, decide on itself.
        """
        in_turn = self._in_turn(self.chosen.rows)
        limits = self._scheduler.drafts_with_blocks(in_turn, [self._limit(row) for row in in_turn])
        drafted = [
            (row, found[row.sequence], limit)
            for row, limit in zip(in_turn, limits, strict=True)
            if row.sequence in found
        ]
        self._drafted_kinds = {self.kind(row.sequence) for row, _, _ in drafted}
        survivals = [self._survival(*each) for each in drafted]
        facts = self._facts(rows, [(row, limit) for row, _, limit in drafted], survivals)
        capacity = self._scheduler.room_for_drafts(rows)
        verify_lens = self._budget.allocate(survivals, capacity, facts)
        self._unverified = [
            (row.sequence, survival)
            for (row, _, _), survival, verify_len in zip(
                drafted, survivals, verify_lens, strict=True
            )
            if not verify_len
        ]
        admitted = {
            row.sequence: self._scheduler.with_drafts(
                row, speculation, self._without_forbidden(row, speculation.token_ids[:verify_len])
            )
            for (row, speculation, _), verify_len in zip(drafted, verify_lens, strict=True)
        }
        admitted_rows = [admitted.get(row.sequence, row) for row in rows]
        if self._is_asynchronous:  # from now on blocks of the next round are drawn
            self._known_next = self._write_down(rows)
        if self._prices is not None:
            self._prices.launch(sum(row.num_tokens for row in admitted_rows))
        return admitted_rows

    def count_covered(
        self, found: Mapping[Sequence, Speculation], catching_up: Collection[Sequence] = ()
    ) -> None:
        """A drafter beside the target was asked for blocks of the chosen rows, and `found` some.

        Rows `catching_up` were not drafted for yet, which says nothing of later rounds.
        """
        by_kind: dict[str, list[bool]] = {}
        ready = [row for row in self.chosen.rows if row.sequence not in catching_up]
        if self._chooser is not None and 2 * len(ready) < len(self.chosen.rows):
            self._chooser.repeat_trial()
        for row in ready:
            by_kind.setdefault(self.kind(row.sequence), []).append(row.sequence in found)
        for kind, has_block in by_kind.items():
            self._acceptance.cover(kind, sum(has_block) / len(has_block))

    def _write_down(self, rows: Rows[Row]) -> "_Known":
        """What is known now of times and acceptance, and of which `rows` are behind."""
        prices = None if self._prices is None else self._prices.freeze()
        drafts = DraftPace() if self._drafts is None else self._drafts.freeze()
        weights = weights_of(row.sequence for row in rows)
        return _Known(prices, drafts, self._acceptance.freeze(), weights)

    def _facts(
        self, rows: list[Row], drafted: list[tuple[Row, int]], survivals: Rows[Rows[float]]
    ) -> RoundFacts:
        """Of a round; the survivals of its blocks are kept for the round after the next.

        `drafted`: rows, and how many tokens each may verify whatever was drafted. How many there
        are knows tokens: chains may end by them.
        """
        two_before: list[Rows[float]] = []
        for (row, limit), survival in zip(drafted, survivals, strict=True):
            rounds = self._last_survivals.setdefault(row.sequence, LatestSurvivals())
            prior = self._known.acceptance.survivals(self.kind(row.sequence))[:limit]
            two_before.append(rounds.pushed(row.sequence.num_rounds, survival, prior))
        load, prices = self._load, self._known.prices
        snapshot = PlanningSnapshot()
        if load is not None and prices is not None:
            costs = self._costs(rows, prices)
            snapshot = PlanningSnapshot(load.token_price, costs)
        return RoundFacts(
            snapshot=snapshot,
            num_tokens=sum(row.num_tokens for row in rows),
            num_rows=sum(row.samples for row in rows),
            before=two_before,
            by_ratio=[self.needs_probs(row) for row, _ in drafted],
            weights=self._weights([row for row, _ in drafted]),
        )

    def _weights(self, rows: list[Row]) -> Rows[float]:
        """As they were written down; who was not there then counts once, as all do if none does."""
        known = self._known.weights
        return [known.get(row.sequence, 1.0) for row in rows] if known else ()

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._last_survivals.pop(sequence, None)
        if self._chooser is not None:
            self._chooser.forget(sequence)

    def observe(
        self,
        rows: list[Row],
        sampled: list[SampledRow],
        stand_ins: Collection[Sequence] = (),
    ) -> list[VerifiedRow]:
        """Learn from the outcomes; the record of every row that verified something.

        `stand_ins`: rows whose blocks stood in for such as draft processes had not prepared.
        """
        if self._prices is not None:
            num_emitted = sum(len(result.token_ids) for result in sampled)
            self._prices.observe(num_emitted)
        records: list[VerifiedRow] = []
        known, usual_of = self._known.acceptance, dict[str, Rows[float]]()
        if self._chooser is not None:
            for sequence, survival in self._unverified:  # whose confidences speak against them
                usual = known.survivals(self.kind(sequence))[: len(survival)]
                self._chooser.observe(sequence, usual, sum(survival))
        for row, result in zip(rows, sampled, strict=True):
            if row.speculation is None or not row.verify_len or result.is_void:
                continue
            # What ended the sample was cut there: the positions behind it were not verified.
            verified = result.num_accepted if result.finish_reason else row.verify_len
            if row.sequence not in stand_ins:  # which another drafter may have drafted
                history = self._acceptance.of(kind := self.kind(row.sequence))
                history.observe(verified, result.num_accepted)
                if self._chooser is not None:
                    if kind not in usual_of:
                        usual_of[kind] = known.survivals(kind)
                    usual = usual_of[kind][:verified]
                    self._chooser.observe(row.sequence, usual, result.num_accepted)
            self._num_verified += verified
            self._num_accepted += result.num_accepted
            records.append(
                VerifiedRow(
                    request_id=row.sequence.request.request_id,
                    sample_index=row.sequence.sample_index,
                    verify_len=row.verify_len,
                    num_accepted=result.num_accepted,
                    num_emitted=len(result.token_ids),
                    num_judged=min(verified, result.num_accepted + 1),
                    confidences=row.speculation.confidences or (),
                    is_stand_in=row.sequence in stand_ins,
                )
            )
        self._acceptance.settle(self._drafted_kinds)
        self._has_paused |= bool(self._candidates) and not self.chosen.rows
        self._warn()
        return records

    def _warn(self) -> None:
        """Once, that drafts are of no use."""
        share = self._num_accepted / max(1, self._num_verified)
        is_useless = share < _NOTHING and self._num_verified >= _MANY
        if self._has_warned or not (self._has_paused or is_useless):
            return
        self._has_warned = True
        log.warning(
            "%d of %d drafted tokens were accepted, which is less than drafting costs%s; %s",
            self._num_accepted,
            self._num_verified,
            ": it pauses, and is tried again now and then" if self._has_paused else "",
            "is speculation.drafter one for this target?"
            if share < _LITTLE
            else "--speculation auto runs what is fastest",
        )

    def _in_turn(self, rows: list[Row]) -> list[Row]:
        """Another row first every round: of equals, the first get the places and blocks there are.

        Whose turn it is follows from the number of rounds, which no draft of this round knows.
        """
        first = self._num_rounds % max(1, len(rows))
        self._num_rounds += 1
        return rows[first:] + rows[:first]

    def _limit(self, row: Row) -> int:
        """Drafted tokens to verify at most, whatever they are: the row's wish and its end count."""
        room = self._sampler.room(row.sequence) - 1
        limit = min(self.gamma, room, self._num_positions(row.sequence))
        wish = row.sequence.request.max_verify_len
        return limit if wish is None else min(limit, wish)

    def _num_positions(self, sequence: Sequence) -> int:
        """Behind the anchor, of those that the drafter was made for; enough where there is no end.

        It follows from the length alone, which drafts of earlier rounds may know.
        """
        if self._max_positions is None:
            return self.gamma
        return self._max_positions - len(sequence.token_ids)

    def _survival(self, row: Row, speculation: Speculation, limit: int) -> Rows[float]:
        """Of the positions that may be verified."""
        confidences = speculation.confidences
        if not confidences:
            confidences = self._known.acceptance.confidences(self.kind(row.sequence))
        return survival_of(confidences[: min(limit, len(speculation.token_ids))])


class _Known(NamedTuple):
    """What admission knew at one moment."""

    prices: FrozenPrices | None
    drafts: DraftPace
    acceptance: FrozenAcceptance
    weights: Mapping[Sequence, float]  # of rows that are behind
