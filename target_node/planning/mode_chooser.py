# pyright: strict
"""Which mode the next run of rounds uses.

Most rounds run the preferred one, which another replaces by being faster by a margin. The first is
what was foretold to be the fastest. Where one is safe, nothing else is preferred before it is
faster beyond doubt: what leads by less than is known makes room until more is. A few rounds, in
short runs, try another. A kind of mode of which nothing was foretold has one try under each
verification method. Apart from that trying others may
lose a small share of a load's tokens, so that what changes is noticed: the more a kind loses, the
more rarely it is tried. What may well be faster as far as is known, and what only its kind speaks
against, may lose a little more, but together: what each may lose would add up.

The first rounds after a change are slower than those that follow: contexts catch up, tables are
empty, and so is the cache of a processor whose weights were read in another rhythm. How much is
measured where the preferred mode takes over again. It counts as lost by whoever was tried; and a
round that comes so early counts for a mode's speed as it would have been later, since else what
is tried for a few rounds always seems slower than what runs all the time.

Receives counts and times, never tokens.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence

from target_node.planning.mode_speeds import BatchLoad, Belief, Forecast, Measured, ModeSpeeds

RUN = 24  # rounds of the preferred mode before the next choice
_SETTLING = 6  # rounds after a change that are slower than others: each ...
_NEXT = 0.6  # ... by so much of what the one before it was slower by
_TRIAL_TOKENS = 24  # of a try, if every row made but one a round
_TRIAL_ROUNDS = 4  # at least
# Of a try of what is nearly as fast, which is as long as a loss of so many is to be expected of it:
# changing over costs the same however short it is, and few tokens tell hundredths from nothing.
_MOST_TRIAL_TOKENS, _TRIAL_LOSS = 120, 10.0
_FORETOLD = 0.35  # standard deviations up to which what was foretold of two modes is knowledge
_MARGIN = 0.02  # by which another mode has to be faster
_SURE = 0.5  # standard deviations by which one is faster beyond doubt
_LOST_SHARE = 0.01  # of a load's tokens may be lost by trying what seems slower, ...
_UNKNOWN_SHARE = 0.03  # ... what only its kind speaks against, ...
_HOPEFUL_SHARE = 0.015  # ... or what may well be faster, ...
_MEMORY = 200_000.0  # tokens; else what was saved in an hour could be lost at a stretch
_FIRST_LOSS = 60.0  # ... and so many besides, or by its kind: a bad one must not use up what ...
_FIRST_OF_GAINS = 150.0  # ... finds a good one; or so many where what runs beats what is safe
_HOPE = 0.3  # standard deviations by which `may well` is meant, at first; the more ...
_SHORT = 200.0  # ... tokens a load has made beyond these, the more it pays to be sure
_CHANGE_ROUNDS = 1.0  # what changing over is believed to lose, before that was measured
_MOST_CHANGE_ROUNDS = 8.0  # that a round of one counts: others may have had the core
_MOST_ROUNDS = 32.0  # that all of one count
_MOST_SLOWER = 1.0  # that a round is taken for slower than it will be, as a share
_SMOOTHING = 0.2  # weight of the latest change


class ModeChooser:
    """Chooses by measured speeds, for each load."""

    def __init__(
        self,
        modes: Sequence[str],
        kinds: Sequence[Hashable] | None = None,
        *,
        safe: str | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """`kinds`: of each mode what it is a kind of; None: each is one of its own.

        `safe`: what runs wherever none of the others is faster beyond doubt. `forecast`: what is
        known of all before any has run.
        """
        self._modes = list(modes)
        self._safe = None if safe is None else self._modes.index(safe)
        self._kinds = list(kinds or modes)
        self._speeds = ModeSpeeds(self._kinds, forecast, plain=self._safe)
        self._preferred: dict[BatchLoad, int] = {}
        self._leading: dict[BatchLoad, int] = {}  # the same, or what stands in for it
        # Tokens, those long ago weigh less; and how many of them were lost by trying a kind.
        self._total: defaultdict[BatchLoad, float] = defaultdict(float)
        self._lost: defaultdict[BatchLoad, defaultdict[Hashable, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self._running = 0
        self._change_rounds = _CHANGE_ROUNDS
        self._changing_s = 0.0  # lost so far by the change that is under way

    def next_run(self, load: BatchLoad, *, but: Collection[str] = ()) -> tuple[str, int]:
        """One of the others than `but`, and how many rounds it is to run."""
        belief = self._speeds.belief(load)
        preferred = self._prefer(load, belief, but)
        if not self._is_measured(load, preferred):
            return self._trial(load, preferred, _TRIAL_TOKENS)
        others = [each for each in self._usable(but) if each != preferred]
        # What all others are measured by has its try first.
        if (
            self._safe in others
            and not self._is_measured(load, self._safe)
            and belief.doubt(self._safe, preferred) > _FORETOLD
        ):
            return self._trial(load, self._safe, _TRIAL_TOKENS)
        # A try under way goes on rather than that another begins.
        others.sort(key=lambda each: (each != self._running, belief.behind(each, preferred)))
        for mode in others:
            num_tokens = self._trial_tokens(load, mode, preferred, belief)
            if self._may_try(load, mode, preferred, belief, num_tokens):
                return self._trial(load, mode, num_tokens)
        return self._modes[preferred], RUN

    def preferred(self, load: BatchLoad, *, but: Collection[str] = ()) -> str:
        """The fastest, as far as is known, with nothing to be learned."""
        return self._modes[self._prefer(load, self._speeds.belief(load), but)]

    def best(self, load: BatchLoad, *, but: Collection[str]) -> str:
        """The fastest of the others, as far as is known."""
        speeds = self._speeds.belief(load).log_speeds
        return self._modes[max(self._usable(but), key=lambda mode: speeds[mode])]

    def _usable(self, but: Collection[str]) -> list[int]:
        return [i for i, mode in enumerate(self._modes) if mode not in but]

    def _is_measured(self, load: BatchLoad, mode: int) -> bool:
        return self._speeds.at(load)[mode].tokens >= _TRIAL_TOKENS

    def _trial(self, load: BatchLoad, mode: int, num_tokens: float) -> tuple[str, int]:
        a_round = float(load.num_rows)
        if num_tokens > _TRIAL_TOKENS:  # which is of what is known
            a_round = max(a_round, self._speeds.at(load)[mode].tokens_a_round)
        return self._modes[mode], max(_TRIAL_ROUNDS, math.ceil(num_tokens / a_round))

    def _trial_tokens(self, load: BatchLoad, mode: int, preferred: int, belief: Belief) -> float:
        """How many a try is to make."""
        if self._speeds.at(load)[mode].tokens < 2 * _TRIAL_TOKENS:
            return _TRIAL_TOKENS
        behind = belief.behind(mode, preferred)
        loss = max(_TRIAL_LOSS, self._change(load, preferred))
        most = loss / behind if behind > 0 else math.inf
        return max(_TRIAL_TOKENS, min(max(_MOST_TRIAL_TOKENS, RUN * load.num_rows), most))

    def _prefer(self, load: BatchLoad, belief: Belief, but: Collection[str]) -> int:
        usable = self._usable(but)
        best = max(usable, key=lambda mode: belief.log_speeds[mode])
        preferred = self._preferred.get(load, self._running)
        if preferred in usable and belief.behind(preferred, best) <= _MARGIN:
            best = preferred
        if self._safe in usable and not self._is_surely_faster(load, best, preferred, belief):
            best = self._safe
        if preferred in usable:
            self._preferred[load] = best
        self._leading[load] = best
        return best

    def _is_surely_faster(self, load: BatchLoad, mode: int, preferred: int, belief: Belief) -> bool:
        """Than what is safe, if that was measured at this load: else it will be."""
        safe = self._safe
        if safe is None or mode == safe:
            return True
        if not self._speeds.at(load)[safe].tokens and belief.doubt(safe, mode) > _FORETOLD:
            return True
        least = _SURE * belief.doubt(safe, mode) + (_MARGIN if preferred == safe else 0.0)
        return belief.behind(safe, mode) > least

    def _may_try(
        self, load: BatchLoad, mode: int, preferred: int, belief: Belief, num_tokens: float
    ) -> bool:
        kind = self._kinds[mode]
        akin = [each for each, other in enumerate(self._kinds) if other == kind]
        is_foretold = belief.doubt(mode, preferred) <= _FORETOLD
        if not is_foretold and not any(
            self._speeds.is_known(load.verification, each) for each in akin
        ):
            return True
        total, lost = self._total[load], self._lost[load]
        behind = belief.behind(mode, preferred)
        at = self._speeds.at(load)
        cost = 2 * self._change(load, preferred) - num_tokens * math.expm1(-max(0.0, behind))
        if lost[kind] + cost < _LOST_SHARE / len(set(self._kinds)) * total:
            return True
        lost_by_all = sum(lost.values())
        # What is akin may be another matter.
        is_known = is_foretold or self._speeds.is_known(load.verification, mode)
        if not is_known and lost_by_all + cost < _UNKNOWN_SHARE * total:
            return True
        # What is doubted more of the two is to be measured, in turns that are not short.
        most = at[preferred].tokens * (2.0 if mode == self._running else 0.5)
        hope = _HOPE * math.sqrt(1 + math.log1p(total / _SHORT))
        is_hopeful = behind < hope * belief.doubt(mode, preferred)
        first = _FIRST_LOSS if preferred == self._safe else _FIRST_OF_GAINS
        may_lose = first + _HOPEFUL_SHARE * total
        has_room = lost_by_all + cost < may_lose or lost[kind] + cost < _FIRST_LOSS
        return is_hopeful and at[mode].tokens < most and has_room

    def _change(self, load: BatchLoad, mode: int) -> float:
        """Tokens that changing over loses."""
        return self._change_rounds * self._speeds.at(load)[mode].tokens_a_round

    def observe(
        self, load: BatchLoad, mode: str, num_tokens: int, seconds: float, *, age: int | None
    ) -> None:
        """One decode round.

        `age`: how many rounds `mode` had in a row before; None: it prepared another besides,
        which is what a change takes and says nothing of its speed.
        """
        running = self._modes.index(mode)
        at = self._speeds.at(load)
        measured, leading = at[running], self._leading.get(load, running)
        if running != leading and age is not None:
            kind = self._kinds[running]
            if running != self._running:
                self._lost[load][kind] += 2 * self._change(load, leading)  # and back again
            if measured.seconds:
                slower = max(0.0, at[leading].speed - measured.speed)
                self._lost[load][kind] += slower * seconds
        self._running = running
        self._count_tokens(load, num_tokens)
        self._speeds.fade(load, seconds)
        if running == leading and measured.rounds > 2 * _SETTLING and measured.speed:
            self._count_change(measured, num_tokens, seconds, age)
        if age is not None:
            slower = self._change_rounds * (1 - _NEXT) * _NEXT**age if age < _SETTLING else 0.0
            measured.add(num_tokens, seconds / (1 + min(slower, _MOST_SLOWER)))

    def _count_tokens(self, load: BatchLoad, num_tokens: int) -> None:
        kept = max(0.0, 1 - num_tokens / _MEMORY)
        self._total[load] = kept * self._total[load] + num_tokens
        lost = self._lost[load]
        for kind in lost:
            lost[kind] *= kept

    def _count_change(
        self, measured: Measured, num_tokens: int, seconds: float, age: int | None
    ) -> None:
        """What a change takes, told by the leading mode, whose speed is known."""
        if age is None or age < _SETTLING:
            most = _MOST_CHANGE_ROUNDS * measured.seconds / measured.rounds
            self._changing_s += min(seconds - num_tokens / measured.speed, most)
        elif self._changing_s:
            rounds = max(0.0, self._changing_s) * measured.rounds / measured.seconds
            rounds = min(rounds, _MOST_ROUNDS)
            self._change_rounds += _SMOOTHING * (rounds - self._change_rounds)
            self._changing_s = 0.0

    def speed(self, load: BatchLoad, mode: str) -> float:
        """Tokens a second, as measured; 0 where nothing was."""
        return self._speeds.at(load)[self._modes.index(mode)].speed
