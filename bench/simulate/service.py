# pyright: strict
"""Simulated services: the shipped planner over simulated rounds, one event a round.

    the forward ends -> what stands is drawn, the source learns -> the source proposes and reports
    -> the next forward begins

`auto` is the shipped `AutoSpeculation` over the shipped forecasts; admission, prices, policies and
step tables are the shipped ones. Prompts take no time: all requests decode.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bench.simulate.colocated import Standing
from bench.simulate.draft_process import DraftProcess
from bench.simulate.modes import Parts, build_source
from bench.simulate.setting import Setting
from bench.simulate.texts import Draws
from bench.simulate.virtual_time import VirtualTime, shipped_code_reads
from draft_node.prespeculation.outcomes import OutcomeKind
from specserve.types import FinishReason, Request, SamplingParams
from target_node.planning.step_table import Cell, StepSize, StepTable
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence

_ANCHOR = 0  # every token: none is looked at


@dataclass
class Counted:
    """Of one target's rounds, while they count."""

    tokens: int = 0
    seconds: float = 0.0
    rows: int = 0  # that decoded, summed over rounds
    verified: int = 0  # drafted tokens
    rounds_by_mode: Counter[str] = field(default_factory=Counter[str])

    @property
    def num_rounds(self) -> int:
        return self.rounds_by_mode.total()


@dataclass(frozen=True)
class Outcome:
    """What a simulated service did, all targets together."""

    tokens_per_s: float
    accept_len: float  # tokens a row and round
    verify_len: float  # drafted tokens verified, a row and round
    round_s: float
    hit_rate: float
    busy: float  # share of their time that draft processes draft
    shares: dict[str, float]  # of rounds, by mode


def simulate(
    setting: Setting, *, tokens_each: int = 256, warm_up: float = 0.25, rounds_at_most: int = 4000
) -> Outcome:
    """Run until every request slot has made so many tokens on average, or so many rounds.

    What comes in the first `warm_up` of that is not counted: the planner learns. Raises ValueError
    for less than a token.
    """
    if tokens_each < 1:
        raise ValueError(f"tokens_each: {tokens_each} is below 1")
    clock = VirtualTime()
    with shipped_code_reads(clock):
        kind = OutcomeKind.of("coupled", setting.requests.temperature)
        number = setting.topology.num_processes
        processes = [DraftProcess(setting.drafters, kind) for _ in range(number)]
        targets = [
            SimulatedTarget(setting, clock, processes, number=place)
            for place in range(setting.topology.num_targets)
        ]
        wanted = tokens_each * setting.requests.num_at_once
        _run(targets, clock, wanted, warm_up, rounds_at_most)
    return _outcome(targets, processes, clock)


def _run(
    targets: list["SimulatedTarget"],
    clock: VirtualTime,
    wanted: int,
    warm_up: float,
    rounds_at_most: int,
) -> None:
    """All targets, whosever round ends first."""
    begins_s = clock.now_s
    events = [(begins_s, place) for place in range(len(targets))]
    left = set(range(len(targets)))
    while left:
        clock.now_s, place = heapq.heappop(events)
        target = targets[place]
        heapq.heappush(events, (target.turn(), place))
        if not target.counts and target.has_done(warm_up, wanted, rounds_at_most):
            target.begin_to_count()
        if target.counted.rows and target.is_over(wanted, rounds_at_most):
            left.discard(place)


class SimulatedTarget:
    """One target with its requests."""

    def __init__(
        self, setting: Setting, clock: VirtualTime, processes: list[DraftProcess], *, number: int
    ) -> None:
        """`number`: among those that share the processes."""
        self.counted = Counted()
        self.counts = False
        self._setting, self._clock = setting, clock
        self._draws = Draws(setting.texts, setting.seed + 7919 * number, setting.drafters.gamma)
        self._standing = Standing(self._draws)
        self._steps = _profiled(setting)
        parts = Parts(setting, clock, self._steps, self._draws, self._standing, processes)
        self._source, self.asynchronous = build_source(parts)
        # Processes are dealt requests by it, and several targets do not all begin with the first.
        self._num_arrived = number
        asked = setting.requests
        self._sequences = [self._arrive(first=place) for place in range(asked.num_at_once)]
        self._rows: list[Row] = []
        self._num_done = self._num_rounds = 0
        self._began_s = clock.now_s

    def turn(self) -> float:
        """The round that has run ends, the next begins; when that will end."""
        if self._rows:
            self._end()
        self._began_s = self._clock.now_s
        rows = [Row(each, num_tokens=1, num_logits=1, samples=True) for each in self._sequences]
        self._source.poll()
        self._rows = self._source.propose(rows)
        size = StepSize(
            len(rows),
            sum(row.num_tokens for row in self._rows),
            sum(row.sequence.num_computed + row.num_tokens for row in self._rows),
        )
        forward_s = self._forward_s(size)
        self._steps.observe(size, forward_s)
        is_drafted = any(row.verify_len for row in self._rows)
        setting = self._setting
        rest_s = setting.rest_s + len(rows) * setting.row_rest_s
        rest_s += is_drafted * setting.drafted_rest_s
        return self._clock.now_s + forward_s + rest_s

    def has_done(self, share: float, wanted: int, rounds_at_most: int) -> bool:
        return self._num_done >= share * wanted or self._num_rounds >= share * rounds_at_most

    def is_over(self, wanted: int, rounds_at_most: int) -> bool:
        return self.has_done(1.0, wanted, rounds_at_most)

    def begin_to_count(self) -> None:
        self.counts = True
        self.counted = Counted()
        if self.asynchronous is not None:
            self.asynchronous.counts.num_hits = self.asynchronous.counts.num_lookups = 0

    def _forward_s(self, size: StepSize) -> float:
        steps = self._setting.steps.at(size.num_rows, size.num_keys)
        seconds = float(steps.seconds(np.array([size.num_tokens]))[0])
        is_beside = self._source.mode.startswith("async")
        return seconds * (self._setting.slower if is_beside else 1.0)

    def _end(self) -> None:
        sampled = [self._sampled(row) for row in self._rows]
        for row, result in zip(self._rows, sampled, strict=True):
            row.sequence.token_ids += result.token_ids
            row.sequence.num_computed = len(row.sequence.token_ids) - 1
        self._source.observe(self._rows, sampled)
        self._count(sampled)
        for place, (row, result) in enumerate(zip(self._rows, sampled, strict=True)):
            row.sequence.num_rounds += 1
            if result.finish_reason is not None:
                self._source.forget(row.sequence)
                self._sequences[place] = self._arrive()

    def _sampled(self, row: Row) -> SampledRow:
        accepted = min(self._standing.take(row.sequence), row.verify_len)
        asked = self._setting.requests
        is_last = row.sequence.num_generated + accepted + 1 >= asked.answer_len
        reason = FinishReason.LENGTH if is_last else None
        return SampledRow([_ANCHOR] * (accepted + 1), accepted, finish_reason=reason)

    def _count(self, sampled: list[SampledRow]) -> None:
        made = sum(len(each.token_ids) for each in sampled)
        self._num_done += made
        self._num_rounds += 1
        counted = self.counted
        counted.tokens += made
        counted.seconds += self._clock.now_s - self._began_s
        counted.rows += len(sampled)
        counted.verified += sum(row.verify_len for row in self._rows)
        counted.rounds_by_mode[self._source.mode] += 1

    def _arrive(self, *, first: int | None = None) -> Sequence:
        """The next request; of the `first` ones, as if they had begun at different times."""
        asked = self._setting.requests
        sampling = SamplingParams(temperature=asked.temperature, max_tokens=asked.answer_len)
        request = Request(
            request_id="", prompt_token_ids=[_ANCHOR] * asked.prompt_len, sampling=sampling, seed=0
        )
        sequence = Sequence(request, 0, self._num_arrived)
        self._num_arrived += 1
        num_made = 1
        if first is not None:
            num_made += first * (asked.answer_len - 2) // max(1, asked.num_at_once)
        sequence.token_ids += [_ANCHOR] * num_made
        sequence.num_computed = len(sequence.token_ids) - 1
        return sequence


def _profiled(setting: Setting) -> StepTable:
    """What the target knows of its forwards from its start."""
    table, steps = StepTable(), setting.steps
    own_s: list[float] = steps.own_s(np.array(steps.sizes)).tolist()
    cells = {n: Cell(s, 8) for n, s in zip(steps.sizes, own_s, strict=True)}
    table.learn(cells, steps.slopes)
    return table


def _outcome(
    targets: list[SimulatedTarget], processes: list[DraftProcess], clock: VirtualTime
) -> Outcome:
    all_of = [target.counted for target in targets]
    tokens_per_s = sum(each.tokens / each.seconds for each in all_of)
    rows, rounds = sum(each.rows for each in all_of), sum(each.num_rounds for each in all_of)
    looked = [each.asynchronous.counts for each in targets if each.asynchronous is not None]
    lookups = sum(each.num_lookups for each in looked)
    by_mode = sum((each.rounds_by_mode for each in all_of), Counter[str]())
    busy_s, lived_s = sum(each.busy_s for each in processes), clock.now_s * len(processes)
    return Outcome(
        tokens_per_s=tokens_per_s,
        accept_len=sum(each.tokens for each in all_of) / rows,
        verify_len=sum(each.verified for each in all_of) / rows,
        round_s=sum(each.seconds for each in all_of) / rounds,
        hit_rate=sum(each.num_hits for each in looked) / lookups if lookups else 0.0,
        busy=busy_s / lived_s if processes else 0.0,
        shares={mode: count / rounds for mode, count in by_mode.most_common()},
    )
