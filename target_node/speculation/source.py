"""Where the drafted tokens of a round come from, and how many of them are verified.

The node asks a `SpeculationSource` before each forward. `NoSpeculation` decodes plainly;
`SynchronousSpeculation` lets a drafter in this process draft first.
"""

from dataclasses import dataclass, field
from typing import Protocol

from specserve.sampling.draft_probs import DraftProbs
from specserve.telemetry import VerifiedRow
from specserve.types import DraftReport
from target_node.planning.admission import Admission
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.drafting import CircuitBreaker, ColocatedDraft


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """What `Load` says of a source; counts since start. Fields have the names they have there."""

    speculation_regime: str  # off | sync | async: what ran last
    num_draft_processes: int = 0
    num_drafts_attached: int = 0
    num_lookups: int = 0
    num_hits: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    num_draft_batches: int = 0
    num_late_draft_batches: int = 0
    draft_batch_s: float = 0.0
    wait_s: float = 0.0
    num_waits: int = 0
    num_lookups_after_hit: int = 0
    num_hits_after_hit: int = 0
    num_prepared_blocks: int = 0
    num_misses: dict[str, int] = field(default_factory=dict[str, int])
    drafts: list[DraftReport] = field(default_factory=list[DraftReport])


class SpeculationSource(Protocol):
    """Drafted tokens for the rows of a round."""

    gamma: int  # drafted tokens of a row at most
    drafter: str  # what drafts, for people; empty if nobody does

    @property
    def mode(self) -> str:
        """Of the latest round: off | sync | async; what is done about misses may follow."""
        ...

    @property
    def num_drafts_attached(self) -> int:
        """Draft processes that may be told and asked now."""
        ...

    @property
    def alarm(self) -> int | None:
        """A file that is readable while `poll` has something to notice; None: it never has."""
        ...

    def propose(self, rows: list[Row]) -> list[Row]:
        """The same rows, decoding ones with the drafted tokens to verify."""
        ...

    def warm_up(self, rows: list[Row]) -> bool:
        """Another source drafts for this round, and this one will soon: prepare for that.

        Whether it was prepared already.
        """
        ...

    def poll(self) -> None:
        """Called between rounds, busy or idle."""
        ...

    def draft_probs(self, rows: list[Row]) -> DraftProbs | None:
        """The draft probabilities that verification of these rows needs, row by row."""
        ...

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        """Learn from the outcomes; the record of every row that verified something."""
        ...

    def was_hit(self, sequence: Sequence) -> bool | None:
        """Whether this round's block of a row had been prepared; None: nobody looked."""
        ...

    def status(self) -> SpeculationStatus: ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...

    def close(self) -> None:
        """Nothing is asked any more."""
        ...


class NoSpeculation:
    """`SpeculationSource` of plain decoding."""

    gamma = 0
    drafter = ""
    mode = "off"
    num_drafts_attached = 0
    alarm = None

    def propose(self, rows: list[Row]) -> list[Row]:
        return rows

    def warm_up(self, rows: list[Row]) -> bool:
        return True

    def poll(self) -> None:
        pass

    def draft_probs(self, rows: list[Row]) -> DraftProbs | None:
        return None

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        return []

    def was_hit(self, sequence: Sequence) -> bool | None:
        return None

    def status(self) -> SpeculationStatus:
        return SpeculationStatus("off")

    def forget(self, sequence: Sequence) -> None:
        pass

    def close(self) -> None:
        pass


class SynchronousSpeculation:
    """Draft, then verify: the drafter works while the target waits."""

    mode = "sync"
    num_drafts_attached = 0
    alarm = None

    def __init__(self, draft: ColocatedDraft, admission: Admission) -> None:
        self.gamma = draft.gamma
        self.drafter = draft.name
        self._draft = draft
        self._admission = admission
        self._breaker = CircuitBreaker()

    def propose(self, rows: list[Row]) -> list[Row]:
        self._admission.begin(rows)
        drafted_for, chain_length = self._admission.chosen
        if not drafted_for or not self._admission.has_room(rows):
            return self._admission.admit(rows, {})
        to_draft = [self._admission.to_draft(row) for row in drafted_for]
        threshold = self._admission.threshold(rows, len(drafted_for))
        most = chain_length if self._draft.is_blind else None
        found = self._breaker.ask(
            lambda: self._draft.speculate(to_draft, threshold=threshold, most=most)
        )
        if not self._breaker.is_failing:
            self._admission.count_covered(found, self._draft.catching_up)
        return self._admission.admit(rows, found)

    def warm_up(self, rows: list[Row]) -> bool:
        return True  # contexts catch up with the first draft

    def poll(self) -> None:
        pass

    def draft_probs(self, rows: list[Row]) -> DraftProbs | None:
        places = [
            (row.speculation.place, row.verify_len)
            for row in rows
            if row.speculation is not None and row.verify_len and self._admission.needs_probs(row)
        ]
        return self._draft.draft_probs(places) if places else None

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        return self._admission.observe(rows, sampled)

    def was_hit(self, sequence: Sequence) -> bool | None:
        return None

    def status(self) -> SpeculationStatus:
        return SpeculationStatus("sync")

    def forget(self, sequence: Sequence) -> None:
        self._draft.forget(sequence)
        self._admission.forget(sequence)

    def close(self) -> None:
        pass
