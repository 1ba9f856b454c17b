"""Run whichever mode is fastest right now: off, synchronous or asynchronous speculation.

Each mode's speed (tokens a second of decode rounds) is foretold (`planning.forecast`) and measured
while it runs, apart for each load (`planning.mode_speeds`), and `planning.mode_chooser` decides by
that. This hands rounds over. Nothing but speed depends on it: contexts are derived state on both
sides, and a request's verification method is the sampler's business.

A round takes from the end of the one before, if it follows at once: what is sent and heard between
two is the mode's as well, and a draft that keeps another core busy makes it longer.

What async is worth depends on what is done about misses: with a draft here rounds are long and
drafts are in time, without anything they are short and drafts are not. So each of these is a mode
of its own to choose from, though one source runs them all; `--speculation async` leaves it at
these. None of them is while no draft process is attached, unless there is no other, nor a wait
while nobody would answer: what they do then is not what they are measured for.

Rounds that read prompts besides are not measured, so nothing is tried in them: what is preferred
for all their rows runs, since those will decode soon. A run of that load goes on through some of
them, though: where few rounds are without prompts, nothing would be learned otherwise.

Draft processes hear of contexts only while they are used and right before: computing them takes the
memory's bandwidth from the target, and a mode that runs without drafts is to be as fast as it
would be alone, and to be measured so. Until they have heard enough, the best of the others runs.

Receives counts and times, never tokens: which mode runs does not depend on what was drawn now.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from specserve.backends.base import Backend
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.verification.method import VerificationMethod
from specserve.telemetry import VerifiedRow
from target_node.planning.forecast import Forecasts
from target_node.planning.mode_chooser import RUN, ModeChooser
from target_node.planning.mode_speeds import BatchLoad, prevailing, verification_of
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.source import SpeculationSource, SpeculationStatus

log = logging.getLogger(__name__)

MOST_WARM_UPS = 16  # rounds in which a mode may prepare before it is used, ready or not
MOST_MIXED = 32  # rounds with prompts that a run may go on through


@dataclass
class _Run:
    """Rounds of one load that a mode is to have."""

    load: BatchLoad | None
    mode: str
    left: int  # rounds that count
    mixed_left: int
    num_warm_ups: int = 0  # rounds in which the mode has prepared

    def is_over(self, *, is_mixed: bool) -> bool:
        return (self.mixed_left if is_mixed else self.left) <= 0

    def count(self, *, is_mixed: bool) -> None:
        if is_mixed:
            self.mixed_left -= 1
        else:
            self.left -= 1


class _Observed(NamedTuple):
    """A decode round that is over."""

    load: BatchLoad
    mode: str
    num_tokens: int
    seconds: float
    age: int | None


class _Seen(NamedTuple):
    """What a round may know of draft processes: as it was before its blocks were drawn."""

    num_drafts: int  # attached
    unusable: frozenset[str]  # modes


class AutoSpeculation:
    """`SpeculationSource` that hands each run of rounds to one of several."""

    def __init__(
        self,
        modes: Mapping[str, SpeculationSource],
        method_of: Callable[[Sequence], VerificationMethod],
        backend: Backend,
        misses: Mapping[str, Miss] | None = None,
        policy: MissPolicy | None = None,
        forecasts: Forecasts | None = None,
    ) -> None:
        """By name; they share the sampler, whose method of a row is `method_of`, and the budget.

        `misses`: the modes that draft processes draft for, and what each does about misses, which
        `policy` is told. Several may have one source. `forecasts`: of the modes, in their order.
        """
        self._modes = dict(modes)
        self._sources = list(dict.fromkeys(modes.values()))
        self._misses = dict(misses or {})
        self._policy = policy or MissPolicy()
        self._method_of = method_of
        self._backend = backend
        self.mode = next(iter(modes))
        self._is_drafted_always = set(self._misses) == set(modes)
        self._chooser = (
            ModeChooser(list(modes), forecast=forecasts)
            if self._is_drafted_always
            else ModeChooser(list(modes), list(modes.values()), safe=self.mode, forecast=forecasts)
        )
        self.gamma = max(source.gamma for source in modes.values())
        self.drafter = next((s.drafter for s in reversed(list(modes.values())) if s.drafter), "")
        self._latest: _Observed | None = None  # round, of which the chooser has not heard yet
        self._run = _Run(None, self.mode, left=0, mixed_left=0)
        self._sequences: list[Sequence] = []  # of the latest round that decoded
        self._load = BatchLoad(0, "")  # theirs
        self._live: set[int] = set()  # ids of the rows of rounds that have not ended
        self._is_alone = False  # draft processes are all there is to use, and there is none
        self._age = 0  # rounds that the mode has had in a row
        self._began_s = 0.0
        self._ended_s = 0.0
        self._num_first_calls = 0
        self._links = self._sources[-1]  # what knows draft processes, if any does
        self._seen = self._look()  # what the next round may know of them
        self._used = self._seen  # what the latest one knew
        self._forecasts = forecasts
        self._num_told: int | None = None  # drafts that were attached when people were told
        self._num_turns = 1  # of the target's loop since the latest round; before the first, any

    def propose(self, rows: list[Row]) -> list[Row]:
        follows = self._num_turns == 1
        self._began_s = self._ended_s if follows else time.perf_counter()
        self._num_first_calls = self._backend.num_first_calls
        num_decoding = sum(row.sequence.is_decoding for row in rows)
        if num_decoding:
            self._choose(rows, is_mixed=num_decoding < len(rows))
        self.learn()  # not before: this round's blocks were drawn while the latest ran
        self._used, self._seen = self._seen, self._look()
        if self.mode in self._misses:
            self._policy.tell(self._misses[self.mode])
        return self._modes[self.mode].propose(rows)

    def learn(self) -> None:
        """What the latest round that is over says of its mode."""
        if self._latest is not None:
            self._chooser.observe(*self._latest[:-1], age=self._latest.age)
            self._latest = None
            if self._forecasts is not None:
                self._forecasts.pass_round()

    def _choose(self, rows: list[Row], *, is_mixed: bool) -> None:
        is_alone = self._is_drafted_always and not self._seen.num_drafts
        if is_alone != self._is_alone:  # who has come has contexts to catch up with
            self._is_alone, self._age = is_alone, 0
        load, unusable = self._load_of(rows), self._seen.unusable
        is_over = self._run.is_over(is_mixed=is_mixed) or self._run.mode in unusable
        if load != self._run.load or is_over:
            self._run = self._next_run(load, unusable, is_mixed=is_mixed)
        wanted = self._run.mode
        source = self._modes[wanted]
        if source is not self._modes[self.mode] and not self._is_ready(rows):
            alike = {name for name, other in self._modes.items() if other is source}
            self._use(self._chooser.best(load, but=alike | unusable))
            return
        self._use(wanted)
        self._run.count(is_mixed=is_mixed)

    def _look(self) -> "_Seen":
        """Who drafts now, for the next round: when that begins its blocks are drawn."""
        return _Seen(self.num_drafts_attached, frozenset(self._unusable()))

    def _unusable(self) -> set[str]:
        """Modes that could not do what they are measured for."""
        if not self.num_drafts_attached and not self._is_drafted_always:
            return set(self._misses)
        waits = {name for name, miss in self._misses.items() if miss is Miss.DRAFT_NOW}
        is_in_vain = not self.num_drafts_attached or self._policy.is_silent
        return waits if is_in_vain and len(waits) < len(self._modes) else set()

    def _next_run(self, load: BatchLoad, unusable: Collection[str], *, is_mixed: bool) -> _Run:
        if is_mixed:
            # Rounds without prompts will choose anew.
            mode = self._chooser.preferred(load, but=unusable)
            return _Run(load, mode, left=0, mixed_left=RUN)
        mode, left = self._chooser.next_run(load, but=unusable)
        return _Run(load, mode, left, mixed_left=MOST_MIXED)

    def _load_of(self, rows: list[Row]) -> BatchLoad:
        sequences = [row.sequence for row in rows]
        if sequences != self._sequences:  # mostly those of the round before
            methods = (verification_of(each, self._method_of(each)) for each in sequences)
            self._load = BatchLoad.of(len(rows), prevailing(methods))
            self._sequences = sequences
            self._live.update(map(id, sequences))
        return (
            self._load._replace(verification=f"{self._load.verification}, alone")
            if self._is_alone
            else self._load
        )

    def _is_ready(self, rows: list[Row]) -> bool:
        self._run.num_warm_ups += 1
        wanted = self._modes[self._run.mode]
        return wanted.warm_up(rows) or self._run.num_warm_ups > MOST_WARM_UPS

    def _use(self, mode: str) -> None:
        if mode != self.mode:
            log.debug("%s instead of %s with %s", mode, self.mode, self._run.load)
            self.mode, self._age = mode, 0

    def warm_up(self, rows: list[Row]) -> bool:
        return self._modes[self._run.mode].warm_up(rows)

    def poll(self) -> None:
        self._num_turns += 1
        for source in self._sources:
            source.poll()
        if not self._live:  # nobody has a block
            self._seen = self._look()
        if self.num_drafts_attached != self._num_told:
            self._num_told = self.num_drafts_attached
            self._tell()

    def _tell(self) -> None:
        """People, what is expected of the modes that can be had, and which is to be the fastest."""
        if self._forecasts is None:
            return
        if not self._live:  # nobody has a block
            self._forecasts.refresh()
        unusable = self._unusable()
        for load in self._forecasts.told:
            speeds = self._forecasts.speeds(load)
            usable = [f"{mode} {s:.4g}" for mode, s in speeds.items() if mode not in unusable]
            first = self._chooser.best(load, but=unusable)
            log.info(
                "%s: expected tokens a second by mode: %s; the fastest is %s",
                load.in_words, ", ".join(usable), first,
            )  # fmt: skip

    def draft_probs(self, rows: list[Row]) -> DraftProbs | None:
        return self._modes[self.mode].draft_probs(rows)

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        records = self._modes[self.mode].observe(rows, sampled)
        self._ended_s, self._num_turns = time.perf_counter(), 0
        age, self._age = self._age, self._age + 1
        load = self._run.load
        if self._backend.num_first_calls != self._num_first_calls:
            return records  # the round took longer than it will again
        if bool(self.num_drafts_attached) != bool(self._used.num_drafts):
            return records  # it chose for others than were there
        if load is not None and all(row.sequence.is_decoding for row in rows):
            num_tokens = sum(len(result.token_ids) for result in sampled)
            elapsed_s = self._ended_s - self._began_s
            if self._run.mode != self.mode:
                age = None
            self._latest = _Observed(load, self.mode, num_tokens, elapsed_s, age)
        return records

    def was_hit(self, sequence: Sequence) -> bool | None:
        return self._modes[self.mode].was_hit(sequence)

    @property
    def num_drafts_attached(self) -> int:
        return self._links.num_drafts_attached

    @property
    def alarm(self) -> int | None:
        return self._links.alarm

    def status(self) -> SpeculationStatus:
        """Of the draft processes whether or not they are used now."""
        ran = self._modes[self.mode].status().speculation_regime
        return replace(self._links.status(), speculation_regime=ran)

    def forget(self, sequence: Sequence) -> None:
        self._live.discard(id(sequence))
        for source in self._sources:
            source.forget(sequence)

    def close(self) -> None:
        for source in self._sources:
            source.close()
