# pyright: strict
"""What a round of each mode is expected to make, and in which time, before any has run.

From what the start measured on both sides (`step_table`, `specserve.drafters.draft_times`) and how
often drafted tokens usually stand (`acceptance`). A synchronous round takes draft and forward one
after the other; of an asynchronous one, blocks are drafted during the forward before (SSD, Theorem
7 with measured parts): as many outcomes are prepared as drafts are done with in that time, and the
share of rows whose outcome is among them follows a power law of their number (SSD, section 4.1).
What a miss costs depends on what is done about it (Theorem 17).

Receives counts and times, never tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from specserve.types import DRAFT_BATCH_SIZE
from target_node.planning.acceptance import Acceptance, FrozenAcceptance
from target_node.planning.draft_pace import DraftPace
from target_node.planning.drafted_rounds import DraftedRound, ExpectedDrafts, Seconds, counts_up_to
from target_node.planning.mode_speeds import BatchLoad
from target_node.planning.step_table import FrozenSteps, StepTable

_A_ROW_KEYS = 256  # tokens of a row's context, where nobody has looked at any
_IN_TIME = 0.85  # of a round may be drafted in, see `DeadlineMargin`
_POWER = 0.6  # of the law of hits, before any was counted
_POWERS = 0.1, 3.0
_A_BLOCK = 9  # tokens of a row that are looked up at once
_LEAST_S = 1e-6
_FRESH, _EARLY = 96, (8, 24, 48)  # rounds that what was foretold stands, and the first of them
_STEPS = 3  # of rounds that lead to each other
_SMOOTHING = 0.02  # weight of the latest round
# Standard deviations of what is foretold, as logarithms: how far texts, machines and whatever
# nobody has measured are from it.
PLAIN_SPREAD, SYNC_SPREAD, ASYNC_SPREAD = 0.04, 0.12, 0.2


class Expected(NamedTuple):
    """Of a round: tokens, and seconds."""

    tokens: float
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class ForwardTimes:
    """Seconds of forwards of so many rows, as the table had them at one moment."""

    def __init__(self, steps: FrozenSteps) -> None:
        self._steps = steps
        self._by_rows: dict[int, list[float]] = {}  # by tokens

    def of_rows(self, num_rows: int) -> Seconds:
        """By tokens in all."""
        return self._steps.at(num_rows, num_rows * _A_ROW_KEYS).seconds

    def seconds(self, num_rows: int, num_tokens: float) -> float:
        """Of so many tokens in all, between two numbers on the line through them."""
        low = int(num_tokens)
        known = self._by_rows.get(num_rows, [])
        if low + 1 >= len(known):
            counts = np.arange(max(low + 2, _A_BLOCK * num_rows))
            known = self._by_rows[num_rows] = self.of_rows(num_rows)(counts).tolist()
        return max(_LEAST_S, known[low] + (num_tokens - low) * (known[low + 1] - known[low]))


class RoundModel(Protocol):
    """What is expected of one mode."""

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of its speed."""
        ...

    def freeze(self) -> "RoundModel":
        """What is known now: nothing that is measured or seen later changes it."""
        ...

    def expected(self, load: BatchLoad, steps: ForwardTimes) -> Expected:
        """Of a round of `load`; the best that the mode can do with it."""
        ...


class PlainRounds:
    """Every row makes its one token."""

    spread = PLAIN_SPREAD

    def freeze(self) -> "PlainRounds":
        return self

    def expected(self, load: BatchLoad, steps: ForwardTimes) -> Expected:
        return Expected(load.num_rows, steps.seconds(load.num_rows, load.num_rows))


@dataclass(frozen=True)
class SynchronousRounds:
    """Drafts, then verifies as many of each block as pays."""

    acceptance: Acceptance | FrozenAcceptance
    drafts: DraftPace
    spread: float = SYNC_SPREAD

    def freeze(self) -> "SynchronousRounds":
        return replace(self, acceptance=self.acceptance.freeze(), drafts=self.drafts.freeze())

    def expected(self, load: BatchLoad, steps: ForwardTimes) -> Expected:
        best = self.best(load, steps)
        return Expected(best.tokens, best.seconds)

    def best(self, load: BatchLoad, steps: ForwardTimes) -> DraftedRound:
        """Of those that draft for all rows."""
        survivals, coverage = (
            self.acceptance.survivals(load.kind),
            self.acceptance.coverage(load.kind),
        )
        rows = ExpectedDrafts.alike(load.num_rows, survivals, coverage)
        return rows.best(self.drafts, steps.of_rows(load.num_rows), counts=[load.num_rows])


class Behind(NamedTuple):
    """What the outcomes of a round are of, that are prepared."""

    kind: str  # of verification
    is_hit: bool  # the block that is verified was prepared itself (primary), or stands in (backup)


@dataclass
class HitPower:
    """r of the law of hits: P(miss) = (1 + outcomes of a row) ** -r, apart for what is verified."""

    _powers: dict[Behind, float] = field(default_factory=dict[Behind, float])

    def copy(self) -> "HitPower":
        return HitPower(dict(self._powers))

    def rate(self, behind: Behind, num_outcomes: float) -> float:
        """What nothing was counted of is like the other of its kind."""
        other = behind._replace(is_hit=not behind.is_hit)
        power = self._powers.get(behind, self._powers.get(other, _POWER))
        return 1 - (1 + num_outcomes) ** -power

    def observe(self, behind: Behind, num_outcomes: float, rate: float) -> None:
        """Of a round: outcomes prepared for each row, and the share of rows that found theirs."""
        if num_outcomes <= 0:
            return
        # A round of one row has a rate of 0 or 1: rates are averaged, and not their powers.
        mean = self.rate(behind, num_outcomes)
        mean += _SMOOTHING * (rate - mean)
        power = -math.log1p(-min(mean, 0.99)) / math.log1p(num_outcomes)
        self._powers[behind] = min(max(power, _POWERS[0]), _POWERS[1])


class OnMiss(NamedTuple):
    """What rows without a block do; all None: they decode plainly."""

    drafts_here: SynchronousRounds | None = None
    waits: bool = False  # for the draft process, where no row has one


@dataclass(frozen=True)
class AsynchronousRounds:
    """Blocks are drafted for likely outcomes while the round before is verified."""

    acceptance: Acceptance | FrozenAcceptance
    drafts: DraftPace  # of one draft process; nothing is known before one is attached
    num_processes: int
    most_outcomes: int  # prepared for a row
    hits: HitPower
    on_miss: OnMiss
    slower: float  # times that a forward takes as long beside a busy draft process
    spread: float = ASYNC_SPREAD

    def freeze(self) -> "AsynchronousRounds":
        here = self.on_miss.drafts_here
        return replace(
            self,
            acceptance=self.acceptance.freeze(),
            drafts=self.drafts.freeze(),
            hits=self.hits.copy(),
            on_miss=self.on_miss._replace(drafts_here=None if here is None else here.freeze()),
        )

    def expected(self, load: BatchLoad, steps: ForwardTimes) -> Expected:
        survivals = self.acceptance.survivals(load.kind)
        # Of a block that is drafted in a process the last token stays behind.
        lengths = counts_up_to(max(1, len(survivals) - 1))
        found = [self._of(load, steps, survivals, length) for length in lengths]
        return max(found, key=lambda each: each.speed)

    def num_outcomes(
        self, num_rows: int, num_tokens: int, seconds: float, *, missed: float = 0.0
    ) -> float:
        """Of each row, drafted in so many seconds with so many tokens each.

        `missed`: the share of rows whose own block has to be drafted first, since nobody else did:
        what may come behind it is not known before.
        """
        rows = -(-num_rows // self.num_processes)
        drafts = self.drafts
        first_s = drafts.entering_s(rows) + missed * drafts.seconds(rows, num_tokens)
        left_s = _IN_TIME * seconds - first_s
        wanted = rows * self.most_outcomes
        if not drafts.is_known or left_s <= 0:
            return 0.0  # nobody is there, or it is too late
        whole_s = max(drafts.seconds(DRAFT_BATCH_SIZE, num_tokens), _LEAST_S)
        num_whole = min(wanted // DRAFT_BATCH_SIZE, int(left_s / whole_s))
        left_s -= num_whole * whole_s
        done = num_whole * DRAFT_BATCH_SIZE
        size = min(DRAFT_BATCH_SIZE, wanted - done)
        while size and drafts.seconds(size, num_tokens) > left_s:
            size //= 2
        return (done + size) / rows

    def _hit_rate(self, load: BatchLoad, num_tokens: int, seconds: float, missed: float) -> float:
        drafted_elsewhere = self.on_miss.waits or self.on_miss.drafts_here is not None
        missed = 0.0 if drafted_elsewhere else missed
        outcomes = self.num_outcomes(load.num_rows, num_tokens, seconds, missed=missed)
        covered = self.acceptance.coverage(load.kind)
        after_hit, after_miss = (
            covered * self.hits.rate(Behind(load.kind, is_hit), outcomes)
            for is_hit in (True, False)
        )
        # What is come to in the long run (SSD, Theorem 7): as many hits begin as end.
        return after_miss / max(_LEAST_S, 1 - after_hit + after_miss)

    def _of(
        self, load: BatchLoad, steps: ForwardTimes, survivals: list[float], length: int
    ) -> Expected:
        num_rows, made = load.num_rows, 1 + sum(survivals[:length])
        num_drafted = length + 1 if self.drafts.go_by_token else len(survivals)

        def round_s(rate: float) -> float:
            return self.slower * steps.seconds(num_rows, num_rows * (1 + rate * length))

        # The more hits the longer a round and the fewer blocks of rows that missed, and the other
        # way round: what a service comes to that begins without any.
        rate = 0.0
        for _ in range(_STEPS):
            rate = self._hit_rate(load, num_drafted, round_s(rate), 1 - rate)
        missed = (1 - rate) * num_rows
        found = Expected(rate * num_rows * made + missed, round_s(rate))
        return self._with_misses(found, load, steps, missed, made)

    def _with_misses(
        self, hits: Expected, load: BatchLoad, steps: ForwardTimes, missed: float, made: float
    ) -> Expected:
        """What the rows that missed make besides their own tokens, and what that takes."""
        num_rows = load.num_rows
        if (here := self.on_miss.drafts_here) is not None:
            alone = here.best(load, steps)
            some = 1 - (1 - missed / num_rows) ** num_rows  # P(a round has any)
            draft_s = some * here.drafts.seconds(max(1, round(missed)), alone.num_drafted)
            plain_s = steps.seconds(num_rows, num_rows)
            share = missed / num_rows
            more_s = draft_s + share * max(0.0, alone.verify_s - plain_s)
            return Expected(hits.tokens + share * (alone.tokens - num_rows), hits.seconds + more_s)
        if self.on_miss.waits:
            all_miss = (missed / num_rows) ** num_rows
            wait_s = self.drafts.seconds(num_rows, self.acceptance.gamma)
            tokens = hits.tokens + all_miss * num_rows * (made - 1)
            return Expected(tokens, hits.seconds + all_miss * wait_s)
        return hits


class Forecasts:
    """Of every mode at any load, as it was when `refresh` was called last."""

    def __init__(
        self, models: Mapping[str, RoundModel], steps: StepTable, told: Sequence[BatchLoad] = ()
    ) -> None:
        """`models` by mode; `told`: the loads that people hear of."""
        self._models, self._steps, self.told = dict(models), steps, told
        self._num_rounds = 0
        self.refresh()

    def refresh(self) -> None:
        """From now on what is known by now is."""
        self._frozen = {mode: model.freeze() for mode, model in self._models.items()}
        self._times = ForwardTimes(self._steps.freeze())
        self._known: dict[BatchLoad, dict[str, float]] = {}

    def pass_round(self) -> None:
        """A round is over; once there were some, what they taught counts."""
        self._num_rounds += 1
        if self._num_rounds in _EARLY or self._num_rounds % _FRESH == 0:
            self.refresh()

    def speeds(self, load: BatchLoad) -> dict[str, float]:
        """Tokens a second, by mode."""
        if load not in self._known:
            self._known[load] = {
                mode: each.expected(load, self._times).speed for mode, each in self._frozen.items()
            }
        return self._known[load]

    def __call__(self, load: BatchLoad) -> tuple[list[float], list[float]]:
        """Logarithms of the modes' speeds in their order, and how far off those may be."""
        logs = [math.log(speed) for speed in self.speeds(load).values()]
        return logs, [each.spread for each in self._frozen.values()]
