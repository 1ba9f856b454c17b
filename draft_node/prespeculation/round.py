"""The newest round of a stream: what the target reported, and which outcomes are drafted for."""

from collections.abc import Sequence
from dataclasses import dataclass

from draft_node.draft_slot import DraftSlot
from draft_node.prespeculation.draft_batches import Branch
from draft_node.prespeculation.outcomes import OutcomeKind
from draft_node.prespeculation.plan import Plan
from draft_node.prespeculation.speculation_cache import DraftedBlock
from specserve.transport.link.messages import BlockKey, RowReport


@dataclass(eq=False, slots=True)
class Round:
    """Of one stream; a newer report replaces it."""

    stream: DraftSlot
    report: RowReport
    kind: OutcomeKind
    block: DraftedBlock | None  # after the anchor: ours, or the target's with its draft top-k
    due_s: float  # when blocks have to be drafted to be there in time; infinity: unknown
    look_s: float  # when the target will look for them, as far as it knows; infinity: unknown
    plan: Plan | None = None
    is_closed: bool = False  # nothing more is drafted for it
    # Its first draft batch began when there was no time left: that it was late says nothing.
    is_rushed: bool = False

    def is_late(self, now_s: float) -> bool:
        """The target has looked: whatever else is drafted for this round is for nobody."""
        return now_s > self.look_s and self.plan is not None and self.plan.num_taken > 0

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
        chance = self.plan.next_value
        report, (number, next_id) = self.report, self.plan.take()
        key = BlockKey(report.stream, report.round + 1, report.position + 1 + number, next_id)
        gap = (report.anchor_id, *self.plan.pending.token_ids[:number])
        return Branch(self.stream, report, self.kind, key, gap, chance)


def one_family(rounds: Sequence[Round]) -> list[Round]:
    """Those whose blocks are drawn by the same family of methods as the first one's."""
    return [each for each in rounds if each.kind.needs_probs is rounds[0].kind.needs_probs]
