"""The newest round of a stream: what the target reported, and which outcomes are drafted for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draft_node.outcome_kind import OutcomeKind
from draft_node.plan import Plan
from draft_node.speculation_cache import DraftedBlock
from draft_node.stream import Stream
from draft_node.waves import Branch
from specserve.link.messages import BlockKey, RowReport


@dataclass(eq=False, slots=True)
class Round:
    """Of one stream; a newer report replaces it."""

    stream: Stream
    report: RowReport
    kind: OutcomeKind
    block: DraftedBlock | None  # after the anchor: ours, or the target's with its foresight
    began_s: float
    lead_s: float  # after which the target will look for blocks; infinity: unknown
    due_s: float  # when they have to be drafted to be there in time
    plan: Plan | None = None
    sent_s: float = 0.0  # when its latest wave was; 0: none was
    is_closed: bool = False  # nothing more is drafted for it

    def is_late(self, now_s: float) -> bool:
        """The target has looked: whatever else is drafted for this round is for nobody."""
        has_looked = now_s > self.began_s + self.lead_s
        return has_looked and self.plan is not None and self.plan.num_taken > 0

    def usable(self, now_s: float) -> float | None:
        """The share of `lead_s` that could have been used, if the target looks now."""
        if math.isinf(self.lead_s):
            return None
        return (now_s - self.began_s - max(0.0, self.sent_s - self.due_s)) / self.lead_s

    @property
    def is_live(self) -> bool:
        return not self.is_closed and self.stream.report is self.report and self.stream.is_current

    @property
    def is_due(self) -> bool:
        """Outcomes within the budget are left."""
        return self.is_live and self.plan is not None and self.plan.is_due

    @property
    def best_value(self) -> float:
        """The probability of the best outcome that is left."""
        assert self.plan is not None
        return self.plan.next_value

    @property
    def anchor_key(self) -> BlockKey:
        """Of a block after the anchor itself."""
        report = self.report
        return BlockKey(report.stream, report.round, report.position, report.anchor_id)

    def root(self) -> Branch:
        """A block after the anchor."""
        return Branch(self.stream, self.report, self.kind, self.anchor_key, ())

    def take_branch(self) -> Branch:
        """A block after the best outcome that is left, which is taken from the plan."""
        assert self.plan is not None
        report, (number, next_id) = self.report, self.plan.take()
        key = BlockKey(report.stream, report.round + 1, report.position + 1 + number, next_id)
        gap = (report.anchor_id, *self.plan.flight.token_ids[:number])
        return Branch(self.stream, report, self.kind, key, gap)


def one_family(rounds: Sequence[Round]) -> list[Round]:
    """Those whose blocks are drawn by the same rule as the first one's."""
    return [each for each in rounds if each.kind.needs_law is rounds[0].kind.needs_law]
