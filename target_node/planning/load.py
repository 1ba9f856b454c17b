"""What the target reports about itself a few times a second: queue, blocks, tokens, round time."""

import time
from collections import Counter
from dataclasses import asdict

from specserve.telemetry import RoundRecord, Tally
from specserve.types import VERIFY_BUDGET_EDGES, Load, SampleDelta
from target_node.planning.calibration_meter import CalibrationMeter
from target_node.planning.step_table import StepTable
from target_node.scheduler import Row, Scheduler
from target_node.sequence import add_positions
from target_node.speculation.source import SpeculationStatus

LOAD_PERIOD_S = 0.25  # also the longest sleep of an idle loop: the API takes silence for death
DRAFT_PERIOD_S = 0.05  # the same, where draft processes are to be noticed as they come
_SMOOTHING = 0.1  # weight of the newest round in the average


class LoadMeter:
    """Counts rounds and tokens since start; times are seconds."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._started_s = time.monotonic()
        self._next_s = 0.0
        self._round_s = 0.0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0
        self._prefills = False  # whether the current round computes prompt tokens
        self._num_drafts = 0
        self._num_drafted_tokens = 0
        self._num_stand_in_drafted = self._num_stand_in_accepted = 0
        self._accepted: list[int] = []  # by position in the block
        self._num_drafts_attached = 0
        self._num_decode_rounds = 0
        self._draft_s = 0.0
        self._forward_s = 0.0
        self._num_rounds_by_mode: Counter[str] = Counter()
        self._verify_budget = Tally(VERIFY_BUDGET_EDGES)
        self._calibration = CalibrationMeter()
        self._has_news = False  # rounds that no report has counted
        self._was_busy = False  # when the last report was made

    def count_prefill(self, rows: list[Row]) -> None:
        """Prompt tokens of a round's rows, before its outcomes are taken over."""
        prefilled = [row for row in rows if row.sequence.num_computed < row.sequence.num_prompt]
        self._prefills = bool(prefilled)
        self._num_prompt_tokens += sum(row.num_tokens for row in prefilled)
        # As in a request's usage: the samples that start from the first one's prompt do not count.
        self._num_cached_tokens += sum(
            row.sequence.num_cached
            for row in prefilled
            if row.sequence.sample_index == 0
            and row.sequence.num_computed == row.sequence.num_cached
        )

    def count_round(self, deltas: list[SampleDelta], record: RoundRecord) -> None:
        """What the round that `count_prefill` saw brought, once it is over."""
        self.num_rounds += 1
        self._has_news = True
        self._num_generated_tokens += sum(len(delta.token_ids) for delta in deltas)
        self._count_drafts(record)
        self._num_rounds_by_mode[record.mode.partition(" ")[0]] += 1
        self._calibration.observe(record.rows)
        if not self._prefills:
            weight = _SMOOTHING if self._round_s else 1.0
            self._round_s += weight * (record.round_s - self._round_s)
            self._num_decode_rounds += 1
            self._draft_s += record.spans_s.get("draft", 0.0)
            self._forward_s += record.spans_s.get("forward", 0.0)
            self._verify_budget.add(sum(row.verify_len for row in record.rows))

    def _count_drafts(self, record: RoundRecord) -> None:
        self._num_drafts += len(record.rows)
        for row in record.rows:
            self._num_drafted_tokens += row.verify_len
            add_positions(self._accepted, row.verify_len, row.num_accepted)
            if row.is_stand_in:
                self._num_stand_in_drafted += row.verify_len
                self._num_stand_in_accepted += row.num_accepted

    def is_due(self, scheduler: Scheduler, num_drafts_attached: int) -> bool:
        """A report is: regularly, when the last request ends, a draft process comes or goes."""
        return (
            num_drafts_attached != self._num_drafts_attached
            or ((self._has_news or self._was_busy) and not _is_busy(scheduler))
            or time.monotonic() >= self._next_s
        )

    def report(
        self,
        scheduler: Scheduler,
        speculation: SpeculationStatus,
        steps: StepTable,
        *,
        num_broken_laws: int,
        draining: bool,
    ) -> Load:
        """All of it; the next is due a while later."""
        now_s = time.monotonic()
        self._num_drafts_attached = speculation.num_drafts_attached
        self._next_s = now_s + LOAD_PERIOD_S
        self._has_news, self._was_busy = False, _is_busy(scheduler)
        pool = scheduler.pool
        return Load(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_free_blocks=pool.num_free,
            num_blocks=pool.num_blocks,
            num_cached_blocks=pool.num_cached,
            num_preemptions=scheduler.num_preemptions,
            num_rounds=self.num_rounds,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_generated_tokens=self._num_generated_tokens,
            round_s=self._round_s,
            draining=draining,
            uptime_s=now_s - self._started_s,
            num_drafts=self._num_drafts,
            num_drafted_tokens=self._num_drafted_tokens,
            num_accepted_tokens=sum(self._accepted),
            num_accepted_per_position=list(self._accepted),
            num_decode_rounds=self._num_decode_rounds,
            draft_s=self._draft_s,
            forward_s=self._forward_s,
            num_broken_laws=num_broken_laws,
            num_stand_in_draft_tokens=self._num_stand_in_drafted,
            num_stand_in_accepted_tokens=self._num_stand_in_accepted,
            num_rounds_by_mode=dict(self._num_rounds_by_mode),
            verify_budget=self._verify_budget.report(),
            step_time_ratio=steps.ratios.report(),
            step_time_error=steps.median_error,
            calibration=self._calibration.report(),
            **asdict(speculation),
        )


def _is_busy(scheduler: Scheduler) -> bool:
    return bool(scheduler.running or scheduler.waiting)
