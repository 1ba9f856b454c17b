# pyright: strict
"""Texts as they matter to speed: which drafted tokens stand, what drafters believe, what follows.

A drafted token has a chance to stand if those before it do; whether it does is drawn by that. What
planners are told of the chance is another matter, and may be wrong. The token after those that
stand has a rank among the drafter's guesses: the shares of ranks follow the law of misses that was
measured for them, 1 - h(F) = c * F ** -r (SSD, section 4.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.simulate.beliefs import Belief, Calibrated

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_NEVER = 2**31  # a rank that no guess has
_LEAST_POWER = 1e-9


class RankLaw(NamedTuple):
    """How often the next token is among the first F guesses: 1 - missed * F ** -power."""

    missed: float = 0.3  # by the first guess alone
    power: float = 1.0

    def hit_rate(self, num_guesses: float) -> float:
        """0 without any guess."""
        if num_guesses < 1:
            return 0.0
        return 1 - self.missed * float(num_guesses) ** -self.power

    def ranks(self, rng: np.random.Generator, count: int) -> Integers:
        """Ranks of so many next tokens, from 0 on."""
        chances = rng.random(count)
        found = np.zeros(count, np.int64)
        beyond = chances < self.missed
        # P(rank >= F) = missed * F ** -power, turned around; without a power there is no end.
        power = max(self.power, _LEAST_POWER)
        with np.errstate(divide="ignore", over="ignore"):
            ranks = (chances[beyond] / self.missed) ** (-1 / power)
        found[beyond] = np.minimum(np.floor(ranks), _NEVER)
        return found


_USUAL = RankLaw()


@dataclass(frozen=True)
class Texts:
    """Of all requests.

    `accept`: by position, P(a token stands | those before it do), on average; the last is that of
    all that follow. `spread` is the standard deviation of chances of one position about that, from
    token to token. `belief`: what planners are told of each chance.
    """

    accept: Sequence[float] = (0.7,)
    spread: float = 0.0
    belief: Belief = Belief.NONE
    recovery: RankLaw = _USUAL  # of what follows a rejected token
    bonus: RankLaw = _USUAL  # ... and a block that stands whole
    prepared: float = 1.0  # times `accept`, of blocks drafted before their anchor was certain
    raw: tuple[float, float] = (1.5, 2.0)  # see `beliefs`: how overconfident raw ones are
    noise: float = 0.5

    def means(self, num_tokens: int, *, is_prepared: bool = False) -> Floats:
        """[num_tokens] of a block."""
        known = np.array(self.accept, np.float64)[:num_tokens]
        means = np.concatenate((known, np.full(num_tokens - len(known), self.accept[-1])))
        return means * self.prepared if is_prepared else means


class Drawn(NamedTuple):
    """Blocks of some rows."""

    confidences: Floats | None  # [rows, tokens], as told; None: the drafter has no opinion
    num_standing: Integers  # [rows]: tokens that stand, if as many are verified


class Draws:
    """Draws blocks and next tokens; the same every time with one seed."""

    def __init__(self, texts: Texts, seed: int, gamma: int) -> None:
        self._texts = texts
        # What planners are told is drawn apart: the texts are the same whatever they believe.
        self._rng, self._own_rng = (np.random.default_rng([seed, own]) for own in (0, 1))
        self._told = Calibrated(texts.belief, texts.raw, texts.noise)
        if texts.belief is Belief.CALIBRATED:  # as `specserve calibrate` does, on other texts
            sample = np.random.default_rng([seed, 2])
            chances = self._chances(sample, texts.means(gamma), 4000)
            self._told.fit(sample, chances)

    def blocks(self, num_rows: int, num_tokens: int, *, is_prepared: bool = False) -> Drawn:
        """Of as many rows, each `num_tokens` long."""
        means = self._texts.means(num_tokens, is_prepared=is_prepared)
        chances = self._chances(self._rng, means, num_rows)
        stands = self._rng.random(chances.shape) < chances
        confidences = self._told.of(self._own_rng, chances, stands)
        return Drawn(confidences, stands.cumprod(axis=1).sum(axis=1))

    def ranks(self, num_standing: Integers, verify_lens: Integers) -> Integers:
        """Of the tokens that follow, row by row; bonuses where all that was verified stands."""
        texts, count = self._texts, len(num_standing)
        recovery, bonus = texts.recovery, texts.bonus
        of_recovery, of_bonus = (law.ranks(self._rng, count) for law in (recovery, bonus))
        return np.where(num_standing >= verify_lens, of_bonus, of_recovery)

    def _chances(self, rng: np.random.Generator, means: Floats, num_rows: int) -> Floats:
        """[num_rows, tokens], from beta distributions with the position's mean and the spread."""
        shape = (num_rows, len(means))
        variance = self._texts.spread**2
        if not variance:
            return np.broadcast_to(means, shape)
        inner = np.clip(means, 0.01, 0.99)
        # A mean this near to 0 or 1 leaves less room than the spread asks for.
        weight = np.maximum(inner * (1 - inner) / variance - 1, 0.2)
        return rng.beta(inner * weight, (1 - inner) * weight, shape)
