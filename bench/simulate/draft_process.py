# pyright: strict
"""A draft process: what it hears of rounds, which outcomes it prepares, and when they are there.

Outcomes are planned by the shipped `Planner` on the shipped hit curves, draft batches are as large
as the shipped `BatchSize` says and cut to the shipped `DeadlineMargin`. What is simulated is the
loop around them (`draft_node.prespeculation.prespeculation`) and the time that drafting takes. A
batch that has begun is finished; nothing of it is there before it ends.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.simulate.setting import Drafters
from draft_node.prespeculation.batch_size import BatchSize, DeadlineMargin
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.fan_out import AcceptancePrior, HitCurves
from draft_node.prespeculation.outcomes import OutcomeKind
from draft_node.prespeculation.plan import PendingBlock, Plan, Planner
from draft_node.prespeculation.timely import Timely
from specserve.drafters.step_timer import LEAST_PASSES

Outcome = tuple[int, int]  # tokens that stand, rank of the one that follows


@dataclass(frozen=True)
class RowSeen:
    """What a target reports of one row."""

    row: Hashable
    number: int  # of the row's round that begins
    outcome: Outcome | None  # of the round before; None: the process was not told of that one
    verify_len: int  # of the round that begins
    confidences: tuple[float, ...]  # of what it verifies; empty: the drafter has none
    has_block: bool  # it knows what may follow: the block is its own, or was told with its guesses
    asked_anyway: bool = False  # the target waits for a block after the anchor


@dataclass(frozen=True)
class Seen:
    """A report."""

    arrives_s: float
    round_s: float  # until the target looks, as far as it knows; 0: it does not
    rows: Sequence[RowSeen]


@dataclass(frozen=True)
class Prepared:
    """A block."""

    ready_s: float  # when the process has it
    num_tokens: int


@dataclass(eq=False)
class _Round:
    """Of one row; a newer report replaces it."""

    seen: RowSeen
    due_s: float
    look_s: float
    needs_root: bool
    plan: Plan | None = None
    is_closed: bool = False
    is_rushed: bool = False
    prepared: dict[Outcome, Prepared] = field(default_factory=dict[Outcome, Prepared])
    root: Prepared | None = None


class DraftProcess:
    """Of one device; any number of targets may report to it."""

    def __init__(self, drafters: Drafters, kind: OutcomeKind) -> None:
        self.times = drafters.in_process
        self.now_s = 0.0  # until when all that is known was done
        self.busy_s = 0.0
        self._kind = kind
        self._gamma = drafters.gamma + 1  # the last token of a block stays behind
        self._settings = BatchSettings(fan_out=drafters.fan_out)
        self._curves = HitCurves(drafters.fan_out)
        self._prior = AcceptancePrior(self._gamma)
        self._margin = DeadlineMargin()
        self._planner = Planner(drafters.fan_out, 0, self._curves)
        self._by_token = self.times.go_by_token
        self._sizes = BatchSize(self._prior, by_token=self._by_token, usual_tokens=self._gamma)
        self._sizes.know(self.times.all, self._gamma)
        self._timely = Timely(self._sizes)
        self._ranks = np.arange(drafters.fan_out, dtype=np.int64)
        self._inbox: deque[Seen] = deque()
        self._rounds: dict[Hashable, _Round] = {}

    # --- what targets do -------------------------------------------------------------------------

    def report(self, seen: Seen) -> None:
        """It is on its way."""
        self._inbox.append(seen)
        if len(self._inbox) > 1 and self._inbox[-2].arrives_s > seen.arrives_s:
            self._inbox = deque(sorted(self._inbox, key=lambda each: each.arrives_s))

    def block_for(
        self, row: Hashable, number: int, outcome: Outcome, by_s: float
    ) -> Prepared | None:
        """What was prepared for that outcome of the row's round, if it left the process by then."""
        self.advance(by_s)
        of_row = self._round(row, number)
        found = None if of_row is None else of_row.prepared.get(outcome)
        return found if found is not None and found.ready_s <= by_s else None

    def num_prepared(self, row: Hashable, number: int, by_s: float) -> int:
        """Blocks for outcomes of the row's round that left the process by then."""
        of_row = self._round(row, number)
        return sum(each.ready_s <= by_s for each in of_row.prepared.values()) if of_row else 0

    def root_of(self, row: Hashable, number: int) -> Prepared | None:
        """The block after the round's anchor, once it was asked for and `advance` came so far."""
        of_row = self._round(row, number)
        return None if of_row is None else of_row.root

    def _round(self, row: Hashable, number: int) -> _Round | None:
        """None where the process has not heard of it yet."""
        found = self._rounds.get(row)
        return found if found is not None and found.seen.number == number else None

    def forget(self, row: Hashable) -> None:
        """It has ended."""
        self._rounds.pop(row, None)

    def advance(self, until_s: float) -> None:
        """Do all that begins before then."""
        while self.now_s < until_s:
            if self._inbox and self._inbox[0].arrives_s <= self.now_s:
                self._hear(self._inbox.popleft())
            elif not self._step():
                if not self._inbox or self._inbox[0].arrives_s > until_s:
                    return
                self.now_s = max(self.now_s, self._inbox[0].arrives_s)

    # --- hearing ---------------------------------------------------------------------------------

    def _hear(self, seen: Seen) -> None:
        round_s = seen.round_s or math.inf
        for row in seen.rows:
            before = self._rounds.get(row.row)
            follows = before is not None and before.seen.number == row.number - 1
            if before is not None and follows and row.outcome is not None:
                self._learn(before, row.outcome)
            self._rounds[row.row] = _Round(
                row,
                due_s=seen.arrives_s + round_s * self._margin.share,
                look_s=seen.arrives_s + round_s,
                needs_root=not row.has_block,
            )
        self._margin.settle()
        self._take(self.times.enter_s)

    def _learn(self, before: _Round, outcome: Outcome) -> None:
        """What became of the round before."""
        found = before.prepared.get(outcome)
        if found is not None and before.look_s < math.inf:
            was_late = found.ready_s > before.look_s
            if not (was_late and before.is_rushed):
                self._margin.observe(was_late=was_late)
        if before.plan is None:
            return
        (number, rank), verify_len = outcome, before.plan.pending.verify_len
        if number > verify_len:
            return
        self._prior.observe(verify_len, number)
        known = rank if rank < len(self._ranks) else -1
        self._curves.observe(self._kind, known, is_bonus=number == verify_len)

    # --- drafting --------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Draft the most urgent batch; False if there is nothing to draft."""
        live = [each for each in self._rounds.values() if not each.is_closed]
        roots = [each for each in live if each.needs_root]
        if roots:
            self._draft_roots([each for each in roots if each.seen.asked_anyway] or roots)
            return True
        self._plan([each for each in live if each.plan is None])
        return self._draft_outcomes(live)

    def _draft_roots(self, rounds: list[_Round]) -> None:
        rounds = rounds[: self._settings.size]
        is_whole = any(each.seen.asked_anyway for each in rounds)
        if not is_whole:
            left_s = max(each.due_s for each in rounds) - self.now_s
            rounds = self._timely.with_roots(rounds, needs_probs=False, left_s=left_s)
        if not rounds:
            return
        num_tokens = self._gamma if is_whole or not self._by_token else LEAST_PASSES
        self._take(self.times.seconds(len(rounds), num_tokens))
        for each in rounds:
            each.needs_root = False
            if each.seen.asked_anyway:
                each.root = Prepared(self.now_s, num_tokens)
                each.is_closed = True  # a second report says what the target verifies of it

    def _plan(self, rounds: Sequence[_Round]) -> None:
        """Rows that verify as much with the same confidences have the same plan."""
        prior = tuple(self._prior.confidences)
        plans: dict[tuple[int, tuple[float, ...]], Plan] = {}
        for each in rounds:
            length = each.seen.verify_len
            known = (each.seen.confidences or prior)[:length]
            if (length, known) not in plans:
                pending = PendingBlock((0,) * length, known, num_slots=length + 1, next_id=0)
                candidates = np.broadcast_to(self._ranks, (length + 1, len(self._ranks)))
                plans[length, known] = self._planner.plan(self._kind, pending, candidates)
            each.plan = replace(plans[length, known])  # of which each takes its own outcomes

    def _draft_outcomes(self, rounds: Sequence[_Round]) -> bool:
        due = [each for each in rounds if _is_due(each, self.now_s)]
        if not due:
            return False
        due_s = min(each.due_s for each in due)
        most = self._settings.most_blocks(len(due))
        left_s = due_s - self.now_s
        size = self._timely.num_outcomes(due, most, needs_probs=False, left_s=left_s)
        if not size:
            for each in due:  # time only gets less
                each.is_closed |= each.due_s == due_s
            return self._draft_outcomes(rounds)
        taken = _take_best(due, size)
        num_tokens = self._tokens_until(due_s, len(taken))
        seconds = self.times.seconds(len(taken), num_tokens)
        self._take(seconds)
        for each, outcome in taken:
            each.prepared[outcome] = Prepared(self.now_s, num_tokens)
        token_s = self._token_s(len(taken))
        self._sizes.observe(
            needs_probs=False,
            num_blocks=len(taken),
            num_tokens=num_tokens,
            seconds=seconds,
            token_s=token_s,
        )
        return True

    def _tokens_until(self, due_s: float, num_blocks: int) -> int:
        """Of every block of a batch: whole ones, or chains as long as there is time."""
        token_s = self._token_s(num_blocks)
        if not self._by_token or math.isinf(due_s):
            return self._gamma
        left_s = due_s - self.now_s - self.times.seconds(num_blocks, 0)
        return min(self._gamma, max(LEAST_PASSES, int(left_s / token_s)))

    def _token_s(self, num_blocks: int) -> float:
        return self.times.seconds(num_blocks, 1) - self.times.seconds(num_blocks, 0)

    def _take(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy_s += seconds


def _is_due(each: _Round, now_s: float) -> bool:
    """Outcomes are left, and the target has not looked yet."""
    plan = each.plan
    if each.is_closed or plan is None or not plan.is_due:
        return False
    return not (now_s > each.look_s and plan.num_taken > 0)


def _take_best(due: Sequence[_Round], size: int) -> list[tuple[_Round, Outcome]]:
    """The likeliest outcomes that are left, whosever they are."""
    plans = [(each, each.plan) for each in due if each.plan is not None]
    heap = [(-plan.next_value, place) for place, (_, plan) in enumerate(plans)]
    heapq.heapify(heap)
    taken: list[tuple[_Round, Outcome]] = []
    while heap and len(taken) < size:
        _, place = heapq.heappop(heap)
        each, plan = plans[place]
        taken.append((each, plan.take()))
        if plan.is_due:
            heapq.heappush(heap, (-plan.next_value, place))
    return taken
