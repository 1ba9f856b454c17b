# pyright: strict
"""Which regime the next run of rounds uses.

Most rounds run the preferred one, which another replaces by being faster by a margin. A few, in
short runs, try another. Every regime has one try under each law, since nothing says how it does
there; after that, while it may well be faster as far as is known, so many tokens may be lost by
trying it at a load; and always a small share of all tokens, so that what changes is noticed: the
more a regime loses, the more rarely it is tried. What changing over costs counts as lost, since
contexts catch up and tables are empty after it. Receives counts and times, never tokens.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from target_node.regime_speeds import Belief, Load, RegimeSpeeds

RUN = 24  # rounds of the preferred regime before the next choice
SETTLING = 2  # first rounds of a run, which say what changing over costs, not how fast a regime is
_TRIAL_TOKENS = 24  # of a try, if every row made but one a round
# Of a try of what is nearly as fast, which is as long as a loss of so many is to be expected of it:
# changing over costs the same however short it is, and few tokens tell hundredths from nothing.
_MOST_TRIAL_TOKENS, _TRIAL_LOSS = 120, 10.0
_MARGIN = 0.02  # by which another regime has to be faster
_LOST_SHARE = 0.01  # of the tokens may be lost by trying what seems slower, ...
_FIRST_LOSS = 150.0  # ... and so many by each regime at every load while it may well be faster
_HOPE = 0.3  # standard deviations by which `may well` is meant, at first; the more ...
_SHORT = 200.0  # ... tokens a load has made beyond these, the more it pays to be sure
_CHANGE_ROUNDS = 1.0  # what changing over is believed to lose, before that was measured
_MOST_CHANGE_ROUNDS = 8.0  # that a round of one counts: others may have had the core
_SMOOTHING = 0.2  # weight of the latest change


class RegimeChooser:
    """Chooses by measured speeds, for each load."""

    def __init__(self, regimes: Sequence[str]) -> None:
        self._regimes = list(regimes)
        self._speeds = RegimeSpeeds(len(regimes))
        self._preferred: dict[Load, int] = {}
        self._total: defaultdict[Load, float] = defaultdict(float)  # tokens
        self._lost: defaultdict[tuple[Load, int], float] = defaultdict(float)  # tokens, by trying
        self._running = 0
        self._change_rounds = _CHANGE_ROUNDS
        self._changing_s = 0.0  # lost so far by the change that is under way

    def next_run(self, load: Load) -> tuple[str, int]:
        """A regime and how many rounds it is to run."""
        belief = self._speeds.belief(load)
        preferred = self._prefer(load, belief)
        if self._speeds.at(load)[preferred].tokens < _TRIAL_TOKENS:
            return self._trial(load, preferred, _TRIAL_TOKENS)
        others = [each for each in range(len(self._regimes)) if each != preferred]
        # A try under way goes on rather than that another begins.
        others.sort(key=lambda each: (each != self._running, belief.behind(each, preferred)))
        for regime in others:
            num_tokens = self._trial_tokens(load, regime, belief.behind(regime, preferred))
            if self._may_try(load, regime, preferred, belief, num_tokens):
                return self._trial(load, regime, num_tokens)
        return self._regimes[preferred], RUN

    def preferred(self, load: Load) -> str:
        """The fastest, as far as is known, with nothing to be learned."""
        return self._regimes[self._prefer(load, self._speeds.belief(load))]

    def best(self, load: Load, *, but: Collection[str]) -> str:
        """The fastest of the others, as far as is known."""
        speeds = self._speeds.belief(load).log_speeds
        others = [i for i, regime in enumerate(self._regimes) if regime not in but]
        return self._regimes[max(others, key=lambda regime: speeds[regime])]

    def _trial(self, load: Load, regime: int, num_tokens: float) -> tuple[str, int]:
        settling = 0 if regime == self._running else SETTLING
        a_round = float(load.num_rows)
        if num_tokens > _TRIAL_TOKENS:  # which is of what is known
            a_round = max(a_round, self._speeds.at(load)[regime].tokens_a_round)
        return self._regimes[regime], settling + math.ceil(num_tokens / a_round)

    def _trial_tokens(self, load: Load, regime: int, behind: float) -> float:
        """How many a try is to make."""
        if self._speeds.at(load)[regime].tokens < 2 * _TRIAL_TOKENS:
            return _TRIAL_TOKENS
        most = _TRIAL_LOSS / behind if behind > 0 else math.inf
        return max(_TRIAL_TOKENS, min(_MOST_TRIAL_TOKENS, most))

    def _prefer(self, load: Load, belief: Belief) -> int:
        best = max(range(len(self._regimes)), key=lambda regime: belief.log_speeds[regime])
        preferred = self._preferred.setdefault(load, self._running)
        if belief.behind(preferred, best) > _MARGIN:
            self._preferred[load] = best
        return self._preferred[load]

    def _may_try(
        self, load: Load, regime: int, preferred: int, belief: Belief, num_tokens: float
    ) -> bool:
        if not self._speeds.is_known(load.law, regime):
            return True
        lost = self._lost[load, regime]
        may_lose = _LOST_SHARE / len(self._regimes) * self._total[load]
        behind = belief.behind(regime, preferred)
        at = self._speeds.at(load)
        cost = 2 * self._change(load, preferred) - num_tokens * math.expm1(-max(0.0, behind))
        if lost + cost < may_lose:
            return True
        # What is doubted more of the two is to be measured, in turns that are not short.
        most = at[preferred].tokens * (2.0 if regime == self._running else 0.5)
        hope = _HOPE * math.sqrt(1 + math.log1p(self._total[load] / _SHORT))
        is_hopeful = behind < hope * belief.doubt(regime, preferred)
        return is_hopeful and at[regime].tokens < most and lost + cost < may_lose + _FIRST_LOSS

    def _change(self, load: Load, regime: int) -> float:
        """Tokens that changing over loses."""
        return self._change_rounds * self._speeds.at(load)[regime].tokens_a_round

    def observe(
        self, load: Load, regime: str, num_tokens: int, seconds: float, *, settles: bool = False
    ) -> None:
        """One decode round; `settles`: one of the first after a change."""
        running = self._regimes.index(regime)
        at = self._speeds.at(load)
        measured, preferred = at[running], self._preferred.get(load, running)
        if running != preferred:
            if running != self._running:
                self._lost[load, running] += 2 * self._change(load, preferred)  # and back again
            if measured.seconds:
                slower = max(each.speed for each in at) - measured.speed
                self._lost[load, running] += slower * seconds
        self._running = running
        self._total[load] += num_tokens
        self._speeds.fade(load, seconds)
        if settles:
            if measured.speed:
                most = _MOST_CHANGE_ROUNDS * measured.seconds / measured.rounds
                self._changing_s += min(seconds - num_tokens / measured.speed, most)
            return
        measured.add(num_tokens, seconds)
        if self._changing_s and measured.seconds:
            rounds = max(0.0, self._changing_s) * measured.rounds / measured.seconds
            self._change_rounds += _SMOOTHING * (rounds - self._change_rounds)
            self._changing_s = 0.0

    def speed(self, load: Load, regime: str) -> float:
        """Tokens a second, as measured; 0 where nothing was."""
        return self._speeds.at(load)[self._regimes.index(regime)].speed
