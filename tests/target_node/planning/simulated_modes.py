"""Rounds of an `auto` that serves texts which drafts get right now more and now less.

A mode's speed at every number of rows is what a test says; tokens scatter about it as they do on
real text, where 128 tokens of one row differ by a quarter and a passage is alike for a while. The
first rounds after a change of mode take longer, as measured beside a target of 30M parameters
with 1, 4 and 16 rows, and the first has no drafts. Async comes in three kinds that share a source.
What was lost is counted in expectation: in the time that each round takes, the best mode had made
so many tokens more.
"""

import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.forecast import ASYNC_SPREAD, PLAIN_SPREAD, SYNC_SPREAD
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.source import NoSpeculation
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime

MODES = ("off", "sync", "async")
KINDS = {"off": 1.0, "sync": 1.0, "async": 1.0, "async now": 0.95, "async skip": 0.9}
_SLOWER = (0.15, 0.14, 0.14, 0.06, 0.06, 0.03, 0.03)  # a round that follows a change at once, ...
_PLAIN_S = 0.005  # a round of plain decoding of one row
_GAMMA = 4
_TOKENS = {"off": 1.0, "sync": 2.2, "async": 2.0}  # a row and round of a family, in the mean
_PASSAGE = 24  # rounds of a text that are about alike
_TEXTS, _PASSAGES = 0.12, 0.12  # standard deviations of what a text and a passage make of that


def family_of(mode: str) -> str:
    return mode.split()[0]


class Text:
    """One row: what drafts are worth in it wanders."""

    def __init__(
        self, source: random.Random, length: float = math.inf, temperature: float = 1.0
    ) -> None:
        """It ends after `length` tokens."""
        self.left = length
        self.is_told = False  # to draft processes
        sampling = SimpleNamespace(temperature=temperature)
        request = SimpleNamespace(sampling=sampling, method=VerificationMethod("coupled"))
        self.sequence = SimpleNamespace(is_decoding=True, request=request)
        self._source = source
        self._text = source.gauss(0, _TEXTS)
        self._passage = source.gauss(0, _PASSAGES)

    def draw(self, mean: float) -> int:
        """Tokens of a round that are `mean` in the mean over all texts."""
        kept = 1 - 1 / _PASSAGE
        scatter = _PASSAGES * math.sqrt(1 - kept * kept)
        self._passage = kept * self._passage + self._source.gauss(0, scatter)
        mean = 1 + (mean - 1) * math.exp(2 * (self._text + self._passage))
        accept = (mean - 1) / mean  # of a chain without end
        accepted = 0
        while accepted < 2 * _GAMMA and self._source.random() < accept:
            accepted += 1
        self.left -= 1 + accepted
        return 1 + accepted


class _Mode(NoSpeculation):
    """Draft processes, if it has any, have to be told of a row in a round before."""

    def __init__(self, *, has_to_be_told: bool) -> None:
        self._has_to_be_told = has_to_be_told

    def propose(self, rows):
        self.warm_up(rows)
        return rows

    def warm_up(self, rows):
        if not self._has_to_be_told:
            return True
        was_warm = all(row.is_told for row in rows)
        for row in rows:
            row.is_told = True
        return was_warm


def _plain_s(of_one: float, num_rows: int) -> float:
    """Plain decoding of 16 rows takes twice as long as of one."""
    return of_one * (1 + math.log2(num_rows) / 4)


class Foretold:
    """In place of `Forecasts`: what a test says, wrong by as much as they usually are."""

    told = ()
    _SPREADS: ClassVar = {"off": PLAIN_SPREAD, "sync": SYNC_SPREAD, "async": ASYNC_SPREAD}

    def __init__(self, speeds, seed: int, plain_s: float) -> None:
        source = random.Random(seed + 1000)
        self._off = {name: source.gauss(0, self._SPREADS[family_of(name)]) for name in KINDS}
        self._speeds, self._plain_s = speeds, plain_s

    def refresh(self):
        pass

    def pass_round(self):
        pass

    def __call__(self, load):
        plain = load.num_rows / _plain_s(self._plain_s, load.num_rows)
        speeds = self._speeds(load.num_rows, 0.0 if load.verification == "greedy" else 1.0)
        logs = [
            math.log(plain * speeds[family_of(name)] * kind) + self._off[name]
            for name, kind in KINDS.items()
        ]
        return logs, [self._SPREADS[family_of(name)] for name in KINDS]


class SimulatedService:
    """`speeds(num_rows, temperature)`: by mode, as a share of plain decoding."""

    def __init__(
        self,
        speeds,
        seed: int,
        plain_s: float = _PLAIN_S,
        make=AutoSpeculation,
        *,
        is_foretold: bool = True,
    ) -> None:
        """`is_foretold`: modes' speeds are known beforehand, as far off as forecasts are."""
        self.clock = ScriptedTime()
        sources = {name: _Mode(has_to_be_told=name == "async") for name in MODES}
        modes = {name: sources[family_of(name)] for name in KINDS}
        method_of = lambda sequence: sequence.request.method  # noqa: E731
        forecasts = Foretold(speeds, seed, plain_s) if is_foretold else None
        self.auto = make(modes, method_of, BACKEND, forecasts=forecasts)
        self.random = random.Random(seed)
        self.made = self.lost = 0.0  # tokens
        self.rounds: Counter[tuple[int, str]] = Counter()  # by rows, decoding or not, and mode
        self.num_changes = 0
        self._speeds = speeds
        self._plain_s = plain_s
        self._last = "off"
        self._age = 0  # rounds since a change

    @property
    def share_lost(self) -> float:
        return self.lost / (self.lost + self.made)

    def forget(self) -> None:
        """What was made and lost so far."""
        self.made, self.lost, self.num_changes = 0.0, 0.0, 0
        self.rounds.clear()

    def text(self, length: float = math.inf, temperature: float = 1.0) -> Text:
        return Text(self.random, length, temperature)

    def round(self, rows: list[Text]) -> None:
        """`rows` that do not decode read their prompts."""
        self.auto.poll()
        self.auto.propose(rows)
        mode, decoding = self.auto.mode, [row for row in rows if row.sequence.is_decoding]
        self.rounds[len(rows), family_of(mode)] += 1
        has_changed, self._last = mode != self._last, mode
        self.num_changes += has_changed
        self._age = 0 if has_changed else self._age + 1
        temperature = rows[0].sequence.request.sampling.temperature
        speeds = self._speeds(len(rows), temperature)
        family = family_of(mode)
        speed = speeds[family] * KINDS[mode]
        plain_s = _plain_s(self._plain_s, len(rows))
        slower = _SLOWER[self._age] if self._age < len(_SLOWER) else 0.0
        round_s = plain_s * _TOKENS[family] / speed * (1 + slower)
        mean = 1.0 if has_changed else _TOKENS[family]
        best = len(rows) / plain_s * max(speeds.values())
        if len(decoding) == len(rows):
            self.made += mean * len(rows)
            self.lost += best * round_s - mean * len(rows)
        drawn = [row.draw(mean) if row.sequence.is_decoding else 0 for row in rows]
        self.clock.now_s += round_s * math.exp(self.random.gauss(0, 0.1))
        self.auto.observe(rows, [SimpleNamespace(token_ids=[0] * count) for count in drawn])

    def steady(
        self, num_rows: int, num_tokens: float, length: int = 128, temperature: float = 1.0
    ) -> None:
        """Another text takes the place of one that has ended, without a prompt to read."""
        end = self.made + num_tokens
        rows = [self.text(self.random.randint(1, length), temperature) for _ in range(num_rows)]
        while self.made < end:
            self.round(rows)
            rows = [row if row.left > 0 else self.text(length, temperature) for row in rows]

    def batch(
        self, lengths: list[int], num_prompt_rounds: int = 0, temperature: float = 1.0
    ) -> None:
        """Texts begin together, their prompts one after another, and end one after another."""
        rows = [self.text(length, temperature) for length in lengths]
        for row in rows:
            row.sequence.is_decoding = not num_prompt_rounds
        for row in rows if num_prompt_rounds else []:
            for _ in range(num_prompt_rounds):
                self.round([row for row in rows if row.left > 0])
            row.sequence.is_decoding = True
        while rows := [row for row in rows if row.left > 0]:
            self.round(rows)
