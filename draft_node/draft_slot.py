"""One stream: what of it is in the drafter's context, what has arrived, and what is missing.

Knows no drafter; `draft_slots` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_node.stream_sampling import StreamSampling
from specserve.transport.link.messages import Numbers, RowReport, Tokens

GRACE_S = 0.005  # context and report come by different ways: the slower one may be near
ASK_AGAIN_S = 0.5  # an answer may be lost with the target's queue


@dataclass(frozen=True, slots=True)
class Segment:
    """Verified tokens from position `start` on, with features [n, H] ([n, 0] where unused)."""

    start: int
    token_ids: Tokens
    features: Numbers

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    def within(self, start: int, end: int) -> "Segment":
        """Its part at positions start .. end - 1."""
        part = slice(start - self.start, end - self.start)
        return Segment(start, self.token_ids[part], self.features[part])


@dataclass(frozen=True, slots=True)
class Hole:
    """Positions start .. end - 1 of a stream are missing."""

    stream: int
    start: int
    end: int


@dataclass(eq=False, slots=True)
class DraftSlot:
    """One running sample. Its number names its row in the drafter, too."""

    number: int
    token_ids: list[int] = field(default_factory=list[int])  # in its context, position by position
    num_verified: int = 0  # how many of them were; the others are pending
    report: RowReport | None = None  # the newest
    segments: list[Segment] = field(default_factory=list[Segment])  # arrived, not yet entered
    is_starved: bool = False  # no memory for its context
    last_heard: int = 0  # rows that had been reported by then
    hole: Hole | None = None  # the one that is waited for
    ask_s: float = 0.0  # when to ask for it
    sampling: StreamSampling | None = None  # the request's; None: nothing is known of it
    num_branches: dict[int, int] = field(default_factory=dict[int, int])  # by round

    @property
    def is_current(self) -> bool:
        """Everything before the anchor of its round is in the context."""
        report = self.report
        return report is not None and not self.is_starved and self.num_verified >= report.position

    @property
    def length(self) -> int:
        """Tokens that its context needs to have, as far as anything of them was heard."""
        ends = [segment.end for segment in self.segments]
        reported = 0 if self.report is None else self.report.position
        return max(len(self.token_ids), reported, *ends)

    def next_branch(self, round_id: int) -> int:
        """A number above 0 that no other block of this stream and round ever had."""
        branch = self.num_branches[round_id] = self.num_branches.get(round_id, 0) + 1
        return branch


def due_hole(stream: DraftSlot, now_s: float) -> Hole | None:
    """What to ask for now. A hole that shrinks is being filled: its end was asked for."""
    report, start = stream.report, stream.num_verified
    if report is None or stream.is_starved:
        return None
    end = min(stream.segments[0].start, report.position) if stream.segments else report.position
    known = stream.hole
    if start >= end:
        stream.hole = None
        return None
    if known is None or start >= known.end:
        stream.hole, stream.ask_s = Hole(stream.number, start, end), now_s + GRACE_S
    elif start > known.start:
        stream.hole = Hole(stream.number, start, known.end)
        stream.ask_s = now_s + ASK_AGAIN_S
    if now_s < stream.ask_s:
        return None
    stream.hole, stream.ask_s = Hole(stream.number, start, end), now_s + ASK_AGAIN_S
    return stream.hole


def num_equal(known: Sequence[int], token_ids: Sequence[int]) -> int:
    """How many tokens from the first on are equal in both."""
    for place, (ours, theirs) in enumerate(zip(known, token_ids, strict=False)):
        if ours != theirs:
            return place
    return min(len(known), len(token_ids))
