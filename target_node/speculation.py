"""Where the drafted tokens of a round come from, and how many of them are verified.

The node asks a `SpeculationSource` before each forward. `NoSpeculation` decodes plainly;
`SynchronousSpeculation` lets a drafter in this process draft first.
"""

import logging
from typing import Protocol

from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.verification.admission import Allocator
from specserve.telemetry import VerifiedRow
from specserve.types import Speculation
from target_node.budget import AcceptanceHistory, survival_of
from target_node.drafting import ColocatedDraft, RowToDraft, needs_law
from target_node.sampler import SampledRow, Sampler
from target_node.scheduler import Row, Scheduler
from target_node.sequence import Sequence

MAX_FAILURES = 5  # of a drafter, then it is asked no more

log = logging.getLogger(__name__)


class SpeculationSource(Protocol):
    """Drafted tokens for the rows of a round."""

    gamma: int  # drafted tokens of a row at most
    drafter: str  # what drafts, for people; empty if nobody does

    def attach(self, rows: list[Row]) -> list[Row]:
        """The same rows, decoding ones with the drafted tokens to verify."""
        ...

    def laws(self, rows: list[Row]) -> DraftLaw | None:
        """The draft laws that verification of these rows needs, row by row."""
        ...

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        """Learn from the outcomes; the record of every row that verified something."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class NoSpeculation:
    """`SpeculationSource` of plain decoding."""

    gamma = 0
    drafter = ""

    def attach(self, rows: list[Row]) -> list[Row]:
        return rows

    def laws(self, rows: list[Row]) -> DraftLaw | None:
        return None

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        return []

    def forget(self, sequence: Sequence) -> None:
        pass


class SynchronousSpeculation:
    """Draft, then verify: the drafter works while the target waits."""

    def __init__(
        self, draft: ColocatedDraft, *, scheduler: Scheduler, sampler: Sampler, budget: Allocator
    ) -> None:
        self.gamma = draft.gamma
        self.drafter = draft.name
        self._draft = draft
        self._scheduler = scheduler
        self._sampler = sampler
        self._budget = budget
        self._history = AcceptanceHistory(draft.gamma)
        self._num_failures = 0

    def attach(self, rows: list[Row]) -> list[Row]:
        decoding = [row for row in rows if self._may_speculate(row)]
        capacity = self._scheduler.room_for_drafts(rows)
        if not decoding or not capacity:
            return rows
        found = self._speculate(decoding)
        drafted = [row for row in decoding if row.sequence in found]
        survivals = [self._survival(row, found[row.sequence]) for row in drafted]
        verify_lens = self._budget.allocate(survivals, capacity)
        admitted = {
            row.sequence: self._scheduler.with_drafts(row, found[row.sequence], verify_len)
            for row, verify_len in zip(drafted, verify_lens, strict=True)
        }
        return [admitted.get(row.sequence, row) for row in rows]

    def _speculate(self, rows: list[Row]) -> dict[Sequence, Speculation]:
        """A drafter that fails costs its drafts, never a request; after a few times, itself."""
        if self._num_failures >= MAX_FAILURES:
            return {}
        try:
            return self._draft.speculate([self._to_draft(row) for row in rows])
        except Exception:
            self._num_failures += 1
            log.exception("drafting failed (%d of %d times)", self._num_failures, MAX_FAILURES)
            return {}

    def laws(self, rows: list[Row]) -> DraftLaw | None:
        places = [
            (row.speculation.place, row.verify_len)
            for row in rows
            if row.speculation is not None and row.verify_len and needs_law(self._to_draft(row))
        ]
        return self._draft.laws(places) if places else None

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        records: list[VerifiedRow] = []
        for row, result in zip(rows, sampled, strict=True):
            if row.speculation is None or not row.verify_len or result.is_void:
                continue
            # What ended the sample was cut there: the positions behind it were not judged.
            judged = result.num_accepted if result.finish_reason else row.verify_len
            self._history.observe(judged, result.num_accepted)
            records.append(
                VerifiedRow(
                    request_id=row.sequence.request.request_id,
                    sample_index=row.sequence.sample_index,
                    verify_len=row.verify_len,
                    num_accepted=result.num_accepted,
                    num_emitted=len(result.token_ids),
                    confidences=row.speculation.confidences or (),
                )
            )
        return records

    def forget(self, sequence: Sequence) -> None:
        self._draft.forget(sequence)

    def _may_speculate(self, row: Row) -> bool:
        """The last token that fits is the target's own: it needs no draft."""
        return (
            row.sequence.is_decoding
            and row.sequence.may_speculate
            and row.sequence.request.max_verify_len != 0
            and self._sampler.room(row.sequence) > 1
        )

    def _to_draft(self, row: Row) -> RowToDraft:
        sequence = row.sequence
        return RowToDraft(sequence, self._sampler.state(sequence), self._sampler.rule(sequence))

    def _survival(self, row: Row, speculation: Speculation) -> list[float]:
        """Of the positions that may be verified: the row's own wishes and its end cut them off."""
        limit = min(len(speculation.token_ids), self._sampler.room(row.sequence) - 1)
        wish = row.sequence.request.max_verify_len
        if wish is not None:
            limit = min(limit, wish)
        confidences = speculation.confidences or self._history.confidences
        return survival_of(confidences[:limit])
