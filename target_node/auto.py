"""`auto`: run whichever of off, synchronous and asynchronous speculation is fastest right now.

Each regime's speed (tokens a second of decode rounds) is measured while it runs, apart for each
load: the number of decoding rows, in powers of two. Most rounds run the best; a few, in runs of
some rounds, try another, the more rarely the slower it was. Switching loses nothing: contexts are
derived state on both sides, and a request's verification rule is the sampler's business.

Receives counts and times, never tokens: which regime runs does not depend on what was drawn now.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from specserve.decoding.draft_law import DraftLaw
from specserve.telemetry import VerifiedRow
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation import SpeculationSource, SpeculationStatus

RUN = 24  # rounds of one regime before the next choice
TRIAL = 12  # rounds of a try
SETTLING = 3  # first rounds of a run, which do not count: contexts catch up, tables are empty
_LEAST_TIME_S = 0.5  # of a regime at a load before its speed is believed
_HALF_LIFE_S = 20.0  # of what was measured
_LOST_SHARE = 0.02  # of the time may go to trying what is slower


class RegimeChooser:
    """Which regime the next run of rounds uses, from measured speeds."""

    def __init__(self, regimes: list[str]) -> None:
        self._regimes = regimes
        self._speeds: dict[tuple[int, str], _Speed] = {}

    def next_run(self, num_rows: int) -> tuple[str, int]:
        """A regime and how many rounds it is to run."""
        load = _bucket(num_rows)
        speeds = {regime: self._of(load, regime) for regime in self._regimes}
        for regime, speed in speeds.items():
            if speed.seconds < _LEAST_TIME_S:
                return regime, TRIAL
        best = max(speeds, key=lambda regime: speeds[regime].value)
        total_s = sum(speed.total_s for speed in speeds.values())
        for regime, speed in speeds.items():
            # Time in a regime that is slower by the share s loses s of it.
            lost = 1 - speed.value / speeds[best].value
            if regime != best and lost * speed.total_s < _LOST_SHARE / len(speeds) * total_s:
                return regime, TRIAL
        return best, RUN

    def observe(self, num_rows: int, regime: str, num_tokens: int, seconds: float) -> None:
        """One decode round."""
        self._of(_bucket(num_rows), regime).add(num_tokens, seconds)

    def speed(self, num_rows: int, regime: str) -> float:
        """Tokens a second, as measured; 0 where nothing was."""
        return self._of(_bucket(num_rows), regime).value

    def _of(self, load: int, regime: str) -> "_Speed":
        return self._speeds.setdefault((load, regime), _Speed())


class AutoSpeculation:
    """`SpeculationSource` that hands each run of rounds to one of several."""

    def __init__(self, regimes: Mapping[str, SpeculationSource]) -> None:
        """By name; they share the sampler, the scheduler and its budget."""
        self._regimes = dict(regimes)
        self._chooser = RegimeChooser(list(regimes))
        self.gamma = max(source.gamma for source in regimes.values())
        self.drafter = next((s.drafter for s in reversed(list(regimes.values())) if s.drafter), "")
        self.regime = next(iter(regimes))
        self._left = 0  # rounds of the current run
        self._load = 0
        self._num_settled = 0
        self._began_s = 0.0

    def attach(self, rows: list[Row]) -> list[Row]:
        self._began_s = time.perf_counter()
        num_decoding = sum(row.sequence.is_decoding for row in rows)
        if num_decoding:
            self._choose(num_decoding)
        for name, source in self._regimes.items():
            if name != self.regime:
                source.follow(rows)
        return self._regimes[self.regime].attach(rows)

    def _choose(self, num_decoding: int) -> None:
        load = _bucket(num_decoding)
        if self._left <= 0 or load != self._load:
            regime, self._left = self._chooser.next_run(num_decoding)
            if regime != self.regime:
                self._num_settled = 0
            self.regime, self._load = regime, load
        self._left -= 1

    def follow(self, rows: list[Row]) -> None:
        for source in self._regimes.values():
            source.follow(rows)

    def tend(self) -> None:
        for source in self._regimes.values():
            source.tend()

    def laws(self, rows: list[Row]) -> DraftLaw | None:
        return self._regimes[self.regime].laws(rows)

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        records = self._regimes[self.regime].observe(rows, sampled)
        self._num_settled += 1
        if self._num_settled > SETTLING and all(row.sequence.is_decoding for row in rows):
            num_tokens = sum(len(result.token_ids) for result in sampled)
            elapsed_s = time.perf_counter() - self._began_s
            self._chooser.observe(len(rows), self.regime, num_tokens, elapsed_s)
        return records

    def was_hit(self, sequence: Sequence) -> bool | None:
        return self._regimes[self.regime].was_hit(sequence)

    def status(self) -> SpeculationStatus:
        """Of the draft processes whether or not they are used now."""
        links = self._regimes.get("async", self._regimes[self.regime])
        return replace(links.status(), speculation_regime=self.regime)

    def forget(self, sequence: Sequence) -> None:
        for source in self._regimes.values():
            source.forget(sequence)


class _Speed:
    """Tokens a second, older rounds weighing less."""

    def __init__(self) -> None:
        self.total_s = 0.0  # ever spent
        self.seconds = 0.0  # that count still
        self._tokens = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        kept = math.exp2(-seconds / _HALF_LIFE_S)
        self._tokens = kept * self._tokens + num_tokens
        self.seconds = kept * self.seconds + seconds
        self.total_s += seconds

    @property
    def value(self) -> float:
        return self._tokens / self.seconds if self.seconds else 0.0


def _bucket(num_rows: int) -> int:
    return max(num_rows, 1).bit_length()
