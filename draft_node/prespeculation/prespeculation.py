"""Pre-speculation: while the target verifies a round, draft for the outcomes that it may have.

    report -> the pending block, its distributions -> candidates -> plan -> draft batches, the
    likeliest first

Draft batches are sized by the time until the target looks for them. A round whose block is neither
ours nor explained by the target gets a root first: a block after its anchor, which tells what may
follow. If the target waits for it, it is pushed, and a second report of the round says what became
of it. Everything is dropped when a newer report comes. Exactness does not rest on any of this: a
missing outcome is a miss.
"""

import math
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

import torch

from draft_node.draft_slots import DraftSlots
from draft_node.prespeculation.batch_size import BatchSize, DeadlineMargin
from draft_node.prespeculation.candidates import PendingVerification, candidates_of
from draft_node.prespeculation.draft_batches import (
    BatchDrafter,
    BatchSettings,
    Branch,
    DraftedBatch,
)
from draft_node.prespeculation.fan_out import AcceptancePrior, HitCurves
from draft_node.prespeculation.outcomes import OutcomeKind
from draft_node.prespeculation.plan import Planner, pending_block
from draft_node.prespeculation.round import Round, one_family
from draft_node.prespeculation.speculation_cache import SpeculationCache, told_block
from draft_node.prespeculation.timely import Timely
from specserve.backends.base import Backend
from specserve.drafters.protocol import Drafter
from specserve.drafters.step_timer import LEAST_PASSES
from specserve.transport.link.frames import MAX_ROUND
from specserve.transport.link.messages import Push, Report, RowReport

_LATEST_S = 1.0  # that a report may be behind: a clock that says more is another machine's


class PreSpeculation:
    """Rounds of all streams, and the draft batches made for them."""

    def __init__(
        self,
        drafter: Drafter,
        streams: DraftSlots,
        settings: BatchSettings,
        *,
        backend: Backend,
    ) -> None:
        self.cache = SpeculationCache()
        self.curves = HitCurves(settings.fan_out)
        self.prior = AcceptancePrior(drafter.gamma, prior=settings.acceptance)
        self.deadline_margin = DeadlineMargin()
        self.failures = streams.failures
        self._drafter = drafter
        self._streams = streams
        self._settings = settings
        self._backend = backend
        self._draft_batches = BatchDrafter(drafter, self.cache, settings, backend.device)
        self._planner = Planner(settings.fan_out, 2 * settings.size, self.curves)
        self._sizes = BatchSize(
            self.prior,
            by_token=drafter.stops_in_time,
            usual_tokens=self._draft_batches.tokens_in_time,
        )
        self._sizes.know(settings.times, drafter.gamma)
        self._timely = Timely(self._sizes)
        self._rounds: dict[int, Round] = {}
        self._send_push: Callable[[Push], bool] | None = None
        self._max_positions = 0

    def attach(
        self,
        send: Callable[[Push], bool],
        epoch: int,
        max_positions: int,
        *,
        on_device: bool = False,
    ) -> None:
        """Start clean, in a new epoch; `send` says whether there was room for a push.

        `on_device`: it takes distributions from there.
        """
        self._send_push, self._draft_batches.epoch, self._max_positions = send, epoch, max_positions
        self._draft_batches.on_device = on_device
        self._rounds.clear()
        self.cache.clear()

    def take_report(self, report: Report) -> None:
        """What the rows of one round report."""
        now_s = time.perf_counter()
        # The draft batch before may have ended after the report came.
        is_sound = 0 < now_s - report.sent_s < _LATEST_S
        for row in report.rows:
            self.take(row, report.round_latency_s, report.sent_s if is_sound else now_s)
        self.deadline_margin.settle()

    def take(
        self, row: RowReport, round_latency_s: float = 0.0, sent_s: float | None = None
    ) -> None:
        """A round has begun; what was planned for the one before is dropped.

        `round_latency_s`: the target looks for blocks about so long after it reported, which was at
        `sent_s`; 0: nobody knows.
        """
        stream = self._streams.take_report(row)
        if stream is None:
            return
        sent_s = time.perf_counter() if sent_s is None else sent_s
        before = self._rounds.get(row.stream)
        if before is not None:
            self._learn(before, row)
        kind = OutcomeKind.of(row.method, row.temperature)
        is_new = before is None or before.report.round < row.round
        block = self.cache.settle(row, is_new=is_new)
        if is_new and block is not None and before is not None:
            was_late = row.speculation_id != block.speculation_id
            if before.look_s < math.inf and not (was_late and before.is_rushed):
                self.deadline_margin.observe(was_late=was_late)
        if row.draft_top_k is not None:
            block = told_block(row, row.draft_top_k, self._backend.device)
        elif row.awaits and block is not None and len(block.token_ids) < LEAST_PASSES:
            block = None  # the target has it and cannot use it
        round_latency_s = round_latency_s or math.inf
        due_s = sent_s + round_latency_s * self.deadline_margin.share
        now = Round(stream, row, kind, block, due_s, sent_s + round_latency_s)
        # No block follows an empty context, or fits behind a full one, or has keys in that round.
        is_last = row.position + 2 >= self._max_positions
        now.is_closed = row.position < 1 or is_last or row.round >= MAX_ROUND
        # What the target waits for is on its way: a second report will say what it verifies.
        now.is_closed |= row.awaits and block is not None
        self._rounds[row.stream] = now

    def free(self, streams: Sequence[int]) -> None:
        """These have ended."""
        for stream in streams:
            self._rounds.pop(stream, None)
        self.cache.free(streams)

    @torch.inference_mode()
    def step(self) -> bool:
        """Draft the most urgent batch; False if there is nothing to draft.

        Raises `DraftingFailed` when the drafter seems to be broken for good.
        """
        live = [each for each in self._rounds.values() if each.is_live]
        roots = [each for each in live if each.block is None]
        if roots:
            self._draft_roots([each for each in roots if each.report.awaits] or roots)
            return True
        self._plan([each for each in live if each.plan is None])
        return self._draft_outcomes(live)

    # --- learning ----------------------------------------------------------------------------

    def _learn(self, before: Round, row: RowReport) -> None:
        """What the report of the next round says about the outcome of this one."""
        plan, number = before.plan, row.position - before.report.position - 1
        if plan is None or row.round != before.report.round + 1:
            return
        pending = plan.pending
        if not 0 <= number <= pending.verify_len:
            return
        if pending.is_ours:
            self.prior.observe(pending.verify_len, number)
        if number < pending.num_slots:
            rank = plan.rank_of(number, row.anchor_id)
            is_bonus = number == pending.verify_len
            self.curves.observe(before.kind, rank, is_bonus=is_bonus)

    # --- roots -------------------------------------------------------------------------------

    def _draft_roots(self, rounds: list[Round]) -> None:
        """A block after the anchor of rounds of one family, at most a draft batch of them.

        Where nothing is verified and nobody waits, it tells what may follow the anchor and no more:
        such a chain ends as early as chains may, and the time goes to the outcomes.
        """
        rounds = one_family(rounds)[: self._settings.size]
        if not any(each.report.awaits for each in rounds):
            left_s = max(each.due_s for each in rounds) - time.perf_counter()
            needs_probs = rounds[0].kind.needs_probs
            rounds = self._timely.with_roots(rounds, needs_probs=needs_probs, left_s=left_s)
        if not rounds:
            return
        is_whole = any(each.report.awaits or len(each.report.block) for each in rounds)
        due_s = math.inf if is_whole else -math.inf
        draft_batch = self._draft(rounds, [each.root() for each in rounds], due_s=due_s)
        blocks = {} if draft_batch is None else {block.key: block for block in draft_batch.blocks}
        for each in rounds:
            each.block = blocks.get(each.anchor_key)
            # Either the drafter has nothing to say, or what the target verifies of this block is
            # in the report that follows.
            each.is_closed = each.block is None or each.report.awaits
        if draft_batch is not None and any(each.report.awaits for each in rounds):
            self._send(draft_batch)

    # --- outcomes ----------------------------------------------------------------------------

    def _plan(self, rounds: Sequence[Round]) -> None:
        verifications: list[PendingVerification] = []
        for each in rounds:
            assert each.block is not None
            # An anchor at the very end of the model's context needs no block.
            max_slots = self._max_positions - 2 - each.report.position
            pending = pending_block(each.report, each.block, self.prior.confidences, max_slots)
            verifications.append(PendingVerification(each.report, each.kind, each.block, pending))
        self._streams.provide(
            [
                (each.stream, [each.report.anchor_id, *verification.pending.token_ids])
                for each, verification in zip(rounds, verifications, strict=True)
            ]
        )
        candidates = candidates_of(
            verifications, self._settings.fan_out, self._draft_batches.noise, self._backend.device
        )
        for each, verification, ranked in zip(rounds, verifications, candidates, strict=True):
            each.plan = self._planner.plan(each.kind, verification.pending, ranked)

    def _draft_outcomes(self, rounds: Sequence[Round]) -> bool:
        """One draft batch of the most probable outcomes of all rounds; False if none is left."""
        now_s = time.perf_counter()
        # A stream may fall silent without a word; its deadline is then nobody else's.
        due = [each for each in rounds if each.is_due and not each.is_late(now_s)]
        if not due:
            return False
        due.sort(key=attrgetter("best_value"), reverse=True)
        family = one_family(due)
        due_s = min(each.due_s for each in family)
        needs_probs = family[0].kind.needs_probs
        most = self._settings.size if needs_probs else self._settings.most_blocks(len(family))
        size = self._timely.num_outcomes(
            family, most, needs_probs=needs_probs, left_s=due_s - now_s
        )
        if not size:
            for each in family:  # time only gets less
                each.is_closed |= each.due_s == due_s
            return self._draft_outcomes(rounds)  # others may have more of it
        began_s, num_first_calls = time.perf_counter(), self._backend.num_first_calls
        branches = self._take_batch(family, size)
        draft_batch = self._draft(family, branches, due_s=due_s)
        if draft_batch is not None:
            self._send(draft_batch)
        if draft_batch is not None and self._backend.num_first_calls == num_first_calls:
            self._sizes.observe(
                needs_probs=needs_probs,
                num_blocks=len(branches),
                num_tokens=draft_batch.drawn.token_ids.shape[1],
                seconds=time.perf_counter() - began_s,
                token_s=draft_batch.drawn.token_s,
            )
        return True

    def _take_batch(self, family: Sequence[Round], size: int) -> list[Branch]:
        """The best outcomes that are left; a draft batch of the rejection family is always full."""
        branches: list[Branch] = []
        fills_up = family[0].kind.needs_probs
        while len(branches) < size:
            left = [each for each in family if each.is_due]
            if not left and fills_up:
                left = [each for each in family if each.plan is not None and each.plan.is_left]
            if not left:
                break
            branches.append(max(left, key=attrgetter("best_value")).take_branch())
        return branches

    # --- draft batches -------------------------------------------------------------------------

    def _draft(
        self, rounds: Sequence[Round], branches: Sequence[Branch], due_s: float = math.inf
    ) -> DraftedBatch | None:
        """None if the drafter raised, which ends the `rounds` concerned, or had nothing to say."""
        verify_lens = [each.plan.pending.verify_len for each in rounds if each.plan is not None]
        try:
            min_gap = 1 + max(verify_lens, default=-1)
            draft_batch = self._draft_batches.draft(branches, min_gap, due_s)
        except Exception as error:  # noqa: BLE001
            self.failures.count(error, "drafting")
            for each in rounds:
                each.is_closed = True
            return None
        self.failures.end()
        return draft_batch if draft_batch.blocks else None

    def _send(self, draft_batch: DraftedBatch) -> None:
        statistics = self.cache.statistics
        statistics.num_pushes += 1
        if self._send_push is not None and not self._send_push(draft_batch.push()):
            statistics.num_dropped += 1
            self.cache.discard(draft_batch.blocks)  # nobody has them
