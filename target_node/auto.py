"""`auto`: run whichever of off, synchronous and asynchronous speculation is fastest right now.

Each regime's speed (tokens a second of decode rounds) is measured while it runs, apart for each
load: the number of decoding rows, in powers of two, and how most of them are judged, since what
stands of a draft depends on it. Most rounds run the preferred one, which
another replaces by being faster by a margin. A few, in runs of some rounds, try another, the more
rarely the more that loses: slower rounds, and changing over, after which contexts catch up and
tables are empty. One of which little is known is tried more, while it may well be faster. Nothing
else is lost by it: contexts are derived state on both sides, and a request's verification rule is
the sampler's business.

Draft processes hear of contexts only while they are used and right before: computing them takes the
memory's bandwidth from the target, and a regime that runs without drafts is to be as fast as it
would be alone, and to be measured so. Until they have heard enough, the best of the others runs.

Receives counts and times, never tokens: which regime runs does not depend on what was drawn now.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.verification.rule import VerificationRule
from specserve.telemetry import VerifiedRow
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation import SpeculationSource, SpeculationStatus

RUN = 24  # rounds of one regime before the next choice
TRIAL = 12  # rounds of a try
MOST_TOLD = 16  # rounds in which a regime may prepare before it is used, ready or not
SETTLING = 3  # first rounds of a run, which say what changing over costs, not how fast a regime is
_LEAST_TIME_S = 0.5  # of a regime at a load before its speed is believed
_HALF_LIFE_S = 20.0  # of what was measured, ...
_LEAST_KEPT_S = 2.0  # ... but for so much
_MARGIN = 0.02  # by which another regime has to be faster
_LOST_SHARE = 0.01  # of the time may be lost by trying what seems slower, ...
_FIRST_LOSS_S = 1.5  # ... and so much by each regime at every load while it may well be faster
_DOUBT = 0.25  # standard deviation of a speed that was measured for one second: texts differ
_CHANGE_S = 0.05  # what changing over is believed to lose, before that was measured
_SMOOTHING = 0.2  # weight of the latest change


class RegimeChooser:
    """Which regime the next run of rounds uses, from measured speeds; a load is any key."""

    def __init__(self, regimes: list[str]) -> None:
        self._regimes = regimes
        self._speeds: dict[tuple[Hashable, str], _Speed] = {}
        self._preferred: dict[Hashable, str] = {}  # by load
        self._total_s: defaultdict[Hashable, float] = defaultdict(float)  # by load
        self._lost_s: defaultdict[tuple[Hashable, str], float] = defaultdict(float)  # by trying
        self._running = ""
        self._change_s = _CHANGE_S
        self._changing_s = 0.0  # lost so far by the change that is under way

    def next_run(self, load: Hashable) -> tuple[str, int]:
        """A regime and how many rounds it is to run."""
        for regime in self._regimes:
            if self._of(load, regime).seconds < _LEAST_TIME_S:
                return regime, TRIAL
        preferred = self._prefer(load)
        may_lose_s = _LOST_SHARE / len(self._regimes) * self._total_s[load]
        for regime in self._regimes:
            if regime == preferred:
                continue
            if self._lost_s[load, regime] < may_lose_s:
                return regime, TRIAL
            is_hopeful = self._of(load, regime).hope > self._of(load, preferred).hope
            if is_hopeful and self._lost_s[load, regime] < may_lose_s + _FIRST_LOSS_S:
                return regime, RUN
        return preferred, RUN

    def best(self, load: Hashable, *, but: str) -> str:
        """The fastest of the others, as far as is known."""
        others = [regime for regime in self._regimes if regime != but]
        return max(others, key=lambda regime: self._of(load, regime).value)

    def _prefer(self, load: Hashable) -> str:
        best = max(self._regimes, key=lambda regime: self._of(load, regime).value)
        preferred = self._preferred.setdefault(load, best)
        if self._of(load, best).value > (1 + _MARGIN) * self._of(load, preferred).value:
            self._preferred[load] = best
        return self._preferred[load]

    def observe(
        self, load: Hashable, regime: str, num_tokens: int, seconds: float, *, settles: bool = False
    ) -> None:
        """One decode round; `settles`: one of the first after a change."""
        speed = self._of(load, regime)
        is_tried = regime != self._preferred.get(load)
        if regime != self._running and is_tried:
            self._lost_s[load, regime] += 2 * self._change_s  # there, and back again
        self._running = regime
        self._total_s[load] += seconds
        for each in self._regimes:
            self._of(load, each).fade(seconds)
        if settles:
            self._changing_s += seconds - num_tokens / speed.value if speed.value else 0.0
            return
        if self._changing_s:
            self._change_s += _SMOOTHING * (max(0.0, self._changing_s) - self._change_s)
            self._changing_s = 0.0
        speed.add(num_tokens, seconds)
        if is_tried:
            best = max(self._of(load, each).value for each in self._regimes)
            self._lost_s[load, regime] += (1 - speed.value / best) * seconds if best else 0.0

    def speed(self, load: Hashable, regime: str) -> float:
        """Tokens a second, as measured; 0 where nothing was."""
        return self._of(load, regime).value

    def _of(self, load: Hashable, regime: str) -> "_Speed":
        return self._speeds.setdefault((load, regime), _Speed())


class AutoSpeculation:
    """`SpeculationSource` that hands each run of rounds to one of several."""

    def __init__(
        self,
        regimes: Mapping[str, SpeculationSource],
        rule_of: Callable[[Sequence], VerificationRule],
    ) -> None:
        """By name; they share the sampler, whose rule of a row is `rule_of`, and the budget."""
        self._regimes = dict(regimes)
        self._rule_of = rule_of
        self._chooser = RegimeChooser(list(regimes))
        self.gamma = max(source.gamma for source in regimes.values())
        self.drafter = next((s.drafter for s in reversed(list(regimes.values())) if s.drafter), "")
        self.regime = next(iter(regimes))
        self._wanted = self.regime  # by the chooser
        self._left = 0  # rounds of the run that it wants
        self._load: Hashable = None
        self._num_told = 0  # rounds in which the wanted one has prepared
        self._num_settled = 0
        self._began_s = 0.0

    def attach(self, rows: list[Row]) -> list[Row]:
        self._began_s = time.perf_counter()
        decoding = [row.sequence for row in rows if row.sequence.is_decoding]
        if decoding:
            self._choose(self._load_of(decoding), rows)
        return self._regimes[self.regime].attach(rows)

    def _load_of(self, decoding: list[Sequence]) -> Hashable:
        laws = Counter(map(self._law, decoding))
        return len(decoding).bit_length(), max(laws, key=lambda law: (laws[law], law))

    def _law(self, sequence: Sequence) -> str:
        """The rules are one at temperature 0, where drafts are another matter than at 1."""
        is_greedy = sequence.request.sampling.temperature == 0
        return "greedy" if is_greedy else self._rule_of(sequence)

    def _choose(self, load: Hashable, rows: list[Row]) -> None:
        if self._left <= 0 or load != self._load:
            self._wanted, self._left = self._chooser.next_run(load)
            self._load, self._num_told = load, 0
        if self._wanted != self.regime and not self._is_ready(rows):
            self._use(self._chooser.best(load, but=self._wanted))
            return
        self._use(self._wanted)
        self._left -= 1

    def _is_ready(self, rows: list[Row]) -> bool:
        self._num_told += 1
        return self._regimes[self._wanted].follow(rows) or self._num_told > MOST_TOLD

    def _use(self, regime: str) -> None:
        if regime != self.regime:
            self.regime, self._num_settled = regime, 0

    @property
    def _is_telling(self) -> bool:
        return self._wanted != self.regime

    def follow(self, rows: list[Row]) -> bool:
        return self._regimes[self._wanted].follow(rows)

    def tend(self) -> None:
        for source in self._regimes.values():
            source.tend()

    def laws(self, rows: list[Row]) -> DraftLaw | None:
        return self._regimes[self.regime].laws(rows)

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        records = self._regimes[self.regime].observe(rows, sampled)
        self._num_settled += 1
        if all(row.sequence.is_decoding for row in rows):
            num_tokens = sum(len(result.token_ids) for result in sampled)
            elapsed_s = time.perf_counter() - self._began_s
            settles = self._num_settled <= SETTLING or self._is_telling
            self._chooser.observe(self._load, self.regime, num_tokens, elapsed_s, settles=settles)
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
        self.seconds = 0.0  # that count still
        self._tokens = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self._tokens += num_tokens
        self.seconds += seconds

    def fade(self, seconds: float) -> None:
        """Time has passed, whoever ran: what is measured now counts for more."""
        if self.seconds > _LEAST_KEPT_S:
            kept = max(math.exp2(-seconds / _HALF_LIFE_S), _LEAST_KEPT_S / self.seconds)
            self._tokens *= kept
            self.seconds *= kept

    @property
    def value(self) -> float:
        return self._tokens / self.seconds if self.seconds else 0.0

    @property
    def hope(self) -> float:
        """What it may well be, as far as is known."""
        return self.value * (1 + _DOUBT / math.sqrt(self.seconds)) if self.seconds else math.inf
