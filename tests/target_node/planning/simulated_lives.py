"""Rounds of one load whose rows hit, or miss and are helped: what both bring is what a test says.

As measured on real text: rounds' tokens scatter, passages are alike for a while, and whether a row
hits depends on what its round before was.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import target_node.speculation.auto
import target_node.speculation.miss_policy
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.source import NoSpeculation
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.planning.recorded_modes import decoding_row

_PASSAGE = 24  # rounds of a text that are about alike
_SCATTER = 0.25  # standard deviation of what a passage makes of drafts
_GAMMA = 7


class After(NamedTuple):
    """A round, by what became of its row."""

    tokens: float  # in the mean
    round_s: float
    hits: float  # share of rounds after it


Life = Mapping[Miss | None, After]  # None: a hit


class _Drafts(NoSpeculation):
    """Draft processes, of which nothing is asked but whether there are any."""

    num_drafts_attached = 1


class SimulatedLives:
    """Rows one after another, whose misses `AutoSpeculation` chooses a fall-back for."""

    def __init__(self, life: Life, seed: int, misses: Collection[Miss] = tuple(Miss)) -> None:
        self.clock = ScriptedTime()
        self.policy = MissPolicy()
        self.drafts = _Drafts()
        modes = {str(miss): self.drafts for miss in misses}
        method_of = lambda sequence: sequence.request.method  # noqa: E731
        named = {str(miss): miss for miss in misses}
        self.auto = AutoSpeculation(modes, method_of, BACKEND, named, self.policy)
        self.chosen: Counter[Miss] = Counter()  # by round
        self.life = life
        self.rows = [decoding_row()]
        self.is_late = False  # whether drafts answer in the next round
        self._random = random.Random(seed)
        self._before: Miss | None = None
        self._passage = 0.0
        self.num_tokens = self.seconds = 0.0

    def forget(self) -> None:
        """What was made so far."""
        self.num_tokens = self.seconds = 0.0
        self.chosen.clear()

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds

    def rounds(self, number: int) -> None:
        with (
            mock.patch.object(target_node.speculation.auto, "time", self.clock),
            mock.patch.object(target_node.speculation.miss_policy, "time", self.clock),
        ):
            for _ in range(number):
                self._round()

    def _round(self) -> None:
        source, kept = self._random, 1 - 1 / _PASSAGE
        scatter = _SCATTER * math.sqrt(1 - kept * kept)
        self._passage = kept * self._passage + source.gauss(0, scatter)
        self.auto.poll()
        self.auto.propose(self.rows)
        if self.is_late:
            self.policy.heard()
        miss = self.policy.choose()
        self.chosen[miss] += 1
        hits = self.life[self._before].hits + 0.2 * self._passage
        became = None if source.random() < min(0.97, max(0.0, hits)) else miss
        round_ = self.life[became]
        num_tokens = self._draw(1 + (round_.tokens - 1) * math.exp(self._passage))
        seconds = round_.round_s * math.exp(source.gauss(0, 0.08))
        self.clock.now_s += seconds
        if became is Miss.DRAFT_NOW:
            self.policy.waited(in_vain=round_.tokens == 1)
        elif became is None:
            self.policy.heard()
        self.auto.observe(self.rows, [SimpleNamespace(token_ids=[0] * num_tokens)])
        self._before = became
        self.num_tokens += num_tokens
        self.seconds += seconds

    def _draw(self, mean: float) -> int:
        accept = (mean - 1) / mean
        number = 1
        while number <= _GAMMA and self._random.random() < accept:
            number += 1
        return number
