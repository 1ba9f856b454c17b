# pyright: strict
"""How fast each mode is at each load: what was measured there, and what is like it elsewhere.

A load is how many rows decode, in powers of two, and how they are verified. Logarithms of speeds
are believed to be normal: those of one mode at two loads go together, the less the further apart
the loads are, and so do those of two modes of one kind, but for what all modes have in common at a
load. What was foretold of them (`forecast`) is their mean, so that only what it is wrong by is
learned. What was measured is off by so much, by how many tokens it was. All else follows (Gaussian
process regression): a load that was never seen has its neighbours' ratios, and a few hundred tokens
of its own outweigh them.

Doubt counts tokens, since texts differ by so much a token whatever it took: a fast machine knows as
much in less time. Only what changes with time, how much the past still says, counts seconds.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specserve.drafters.usual_acceptance import GREEDY
from specserve.sampling.verification.method import VerificationMethod
from target_node.sequence import Sequence as TokenSequence

_HALF_LIFE_S = 20.0  # of what was measured, ...
_LEAST_KEPT = 60.0  # ... but for so many tokens
_MOST = 2.0  # times the usual is the most that a round counts
_FEW_ROUNDS = 2.0
# Variance of a speed measured over n tokens, relative, times n: of draws, and of texts and their
# passages, which rows have of their own.
_DRAWS, _TEXTS = 1.0, 3.0
_TIMES = 0.05  # the same of plain decoding, by rounds: it makes as many tokens whatever they are
_UNKNOWN = 0.5  # standard deviation of log speeds of modes at one load, if nothing was foretold
# The same of what modes have in common at a load: anything, or where their speeds were foretold,
# what the rest of a round takes.
_LEVEL, _LEVEL_FORETOLD = 10.0, 0.08
_ALIKE_NEXT = 0.7  # correlation of a mode's speed at a load and at one of twice the rows ...
_ALIKE_VERIFICATION = 0.5  # ... or of rows that are verified otherwise
_ALIKE_KIND = 0.6  # ... and of two modes of one kind
_MOST_LOADS = 8  # of which something is believed, those most alike

_Floats = npt.NDArray[np.float64]
# Of each mode at a load, as foretold: the logarithm of its speed, and its standard deviation.
Forecast = Callable[["BatchLoad"], tuple[Sequence[float], Sequence[float]]]


def verification_of(sequence: TokenSequence, method: VerificationMethod) -> str:
    """What is measured is kept apart by it.

    The methods are one at temperature 0, where drafts are another matter than at 1.
    """
    return GREEDY if sequence.request.sampling.temperature == 0 else method


def prevailing(methods: Iterable[str]) -> str:
    """That of most rows."""
    counts = Counter(methods)
    return max(counts, key=lambda method: (counts[method], method))


class BatchLoad(NamedTuple):
    """What speeds depend on, besides the mode."""

    num_rows_bits: int  # of the number of rows
    verification: str

    @staticmethod
    def of(num_rows: int, verification: str) -> "BatchLoad":
        return BatchLoad(num_rows.bit_length(), verification)

    @property
    def kind(self) -> str:
        """Of verification, whether or not anybody drafts for these rows."""
        return self.verification.partition(",")[0]

    @property
    def num_rows(self) -> int:
        """At least."""
        return 1 << max(0, self.num_rows_bits - 1)

    @property
    def in_words(self) -> str:
        """As who runs a service hears of it, whatever verification is called inside."""
        requests = "1 request" if self.num_rows == 1 else f"{self.num_rows} requests"
        return f"{requests} at temperature 0" if self.kind == GREEDY else f"{requests}, sampled"


@dataclass
class Measured:
    """Of one mode at one load; rounds long ago weigh less."""

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    held_s: float = 0.0  # of a round that took much longer than others

    @property
    def speed(self) -> float:
        """Tokens a second; 0 where nothing was measured."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_a_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """One round. One that stands alone, a stall, counts as a slow round and no more.

        What is cut is kept, and counts once another comes: then they are the mode's own.
        """
        if self.rounds:
            if self.rounds <= _FEW_ROUNDS:  # one of which may have been it
                earlier = max(0.0, self.seconds - _MOST * seconds * self.rounds)
                self.seconds -= earlier
                self.held_s += earlier
            longer = seconds - _MOST * self.seconds / self.rounds
            if longer > 0 and self.held_s > 0:
                self.seconds += self.held_s
                self.held_s = 0.0
            elif longer > 0:
                self.held_s += longer
                seconds -= longer
        self.tokens += num_tokens
        self.seconds += seconds
        self.rounds += 1

    def fade(self, kept: float) -> None:
        """Time has passed, whoever ran: what is measured now counts for more."""
        self.held_s *= kept
        if self.tokens > _LEAST_KEPT:
            kept = max(kept, _LEAST_KEPT / self.tokens)
            self.tokens *= kept
            self.seconds *= kept
            self.rounds *= kept


@dataclass(frozen=True)
class Belief:
    """Of the modes at one load."""

    log_speeds: _Floats  # but for what all have in common
    covariance: _Floats

    def behind(self, mode: int, other: int) -> float:
        """By how much `mode` is slower than `other`, as a logarithm."""
        return float(self.log_speeds[other] - self.log_speeds[mode])

    def doubt(self, mode: int, other: int) -> float:
        """Standard deviation of that."""
        of = self.covariance
        return math.sqrt(max(0.0, of[mode, mode] + of[other, other] - 2 * of[mode, other]))


class ModeSpeeds:
    """What was measured of every mode at every load."""

    def __init__(
        self,
        kinds: Sequence[Hashable],
        forecast: Forecast | None = None,
        *,
        plain: int | None = None,
    ) -> None:
        """Of each mode what it is a kind of; without a forecast they may be anything.

        `plain`: which of them decodes plainly, if one does.
        """
        self._num_modes = len(kinds)
        self._plain = plain
        self._forecast: Forecast = forecast or self._know_nothing
        same = np.array([[kind == other for other in kinds] for kind in kinds])
        self._akin = np.where(np.eye(len(kinds)) > 0, 1.0, _ALIKE_KIND * same)
        self._measured: dict[BatchLoad, list[Measured]] = {}

    def _know_nothing(self, load: BatchLoad) -> tuple[Sequence[float], Sequence[float]]:
        return [0.0] * self._num_modes, [_UNKNOWN] * self._num_modes

    def at(self, load: BatchLoad) -> Sequence[Measured]:
        """Of each mode."""
        if load not in self._measured:
            self._measured[load] = [Measured() for _ in range(self._num_modes)]
        return self._measured[load]

    def fade(self, load: BatchLoad, seconds: float) -> None:
        """So much time has passed at this load."""
        kept = math.exp2(-seconds / _HALF_LIFE_S)
        for measured in self.at(load):
            measured.fade(kept)

    def is_known(self, verification: str, mode: int) -> bool:
        """Whether it was measured at any load of rows that are verified so."""
        return any(
            at.verification == verification and of[mode].seconds
            for at, of in self._measured.items()
        )

    def belief(self, load: BatchLoad) -> Belief:
        """What there is to know of `load`."""
        known = self._known(load)
        foretold = {at: self._forecast(at) for at in {load, *(at for at, _, _ in known)}}
        here = _Places([(load, mode) for mode in range(self._num_modes)], foretold)
        prior = here.covariance(here, self._akin)
        if not known:
            return Belief(here.means - here.means.mean(), prior)
        seen = _Places([(at, mode) for at, mode, _ in known], foretold)
        tokens = np.array([max(1.0, measured.tokens) for _, _, measured in known])
        logs = np.log(tokens / np.array([measured.seconds for _, _, measured in known]))
        scatter = np.array([self._scatter(at, mode) for at, mode, _ in known])
        wrong = logs - seen.means
        if not seen.are_foretold:  # levels are anything, but numbers near zero are solved exactly
            wrong -= wrong.mean()
        among = seen.covariance(seen, self._akin) + np.diag(scatter / tokens)
        towards = seen.covariance(here, self._akin)
        weights = np.linalg.solve(among, towards)
        means = here.means - here.means.mean() + weights.T @ wrong
        return Belief(means, prior - weights.T @ towards)

    def _scatter(self, load: BatchLoad, mode: int) -> float:
        if mode == self._plain:
            return _TIMES * load.num_rows
        return _DRAWS + _TEXTS / load.num_rows

    def _known(self, load: BatchLoad) -> list[tuple[BatchLoad, int, Measured]]:
        """What was measured at the loads most like this one."""
        loads = sorted(self._measured, key=lambda other: -_likeness(load, other))
        return [
            (other, mode, measured)
            for other in loads[:_MOST_LOADS]
            for mode, measured in enumerate(self._measured[other])
            if measured.seconds
        ]


def _likeness(load: BatchLoad, other: BatchLoad) -> float:
    apart = abs(load.num_rows_bits - other.num_rows_bits)
    return _ALIKE_NEXT**apart * (
        1.0 if load.verification == other.verification else _ALIKE_VERIFICATION
    )


class _Places:
    """Modes at loads, whose speeds are believed to go together somewhat."""

    def __init__(
        self,
        places: Sequence[tuple[BatchLoad, int]],
        foretold: Mapping[BatchLoad, tuple[Sequence[float], Sequence[float]]],
    ) -> None:
        self._bits = np.array([load.num_rows_bits for load, _ in places])
        self._verifications = np.array([load.verification for load, _ in places])
        self._modes = np.array([mode for _, mode in places])
        self.means = np.array([foretold[load][0][mode] for load, mode in places])
        self._spreads = np.array([foretold[load][1][mode] for load, mode in places])
        self._levels = np.where(self._spreads < _UNKNOWN, _LEVEL_FORETOLD, _LEVEL)

    @property
    def are_foretold(self) -> bool:
        """Not only how modes compare, but how fast they are."""
        return bool((self._spreads < _UNKNOWN).all())

    def covariance(self, other: "_Places", akin: _Floats) -> _Floats:
        """Of log speeds, one row a place of these, before anything was measured.

        `akin`: of two modes at one load.
        """
        apart = np.abs(self._bits[:, None] - other._bits)
        is_same = self._verifications[:, None] == other._verifications
        likeness = _ALIKE_NEXT**apart * np.where(is_same, 1.0, _ALIKE_VERIFICATION)
        likeness *= akin[self._modes[:, None], other._modes]
        spreads = np.outer(self._spreads, other._spreads)
        levels = np.outer(self._levels, other._levels)
        return spreads * likeness + levels * (is_same & (apart == 0))
