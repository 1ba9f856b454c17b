# pyright: strict
"""Accept length with and without the drafts' mask, and how long masks take.

A target inside of this process (`bench.in_process`), so that the mask of drafts can be left out:
requests are seeded, and texts have to be equal either way.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
from numpy import uint8
from numpy.typing import NDArray

from bench.bootstrap import Interval, Rate, interval, ratio
from bench.conversations import load_plainly
from bench.drafter_choice import DEFAULT_NUM_KEPT, DrafterChoice, load_choice
from bench.in_process import Engine, EngineSize, Job, Speculating
from bench.rounds import Answer, Run
from bench.structured.cost import GRAMMARS
from specserve.grammars.compiler import CompiledGrammar, GrammarCompiler, compiler_of
from specserve.grammars.state import PlaceInGrammar
from specserve.models.config import read_spec
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Grammar

AT_ONCE = 4  # rows


class MaskClock(msgspec.Struct):
    """Processor time of this thread for masks, and how many were asked for."""

    taken_s: float = 0.0
    num_asked: int = 0


class _TimedPlace(PlaceInGrammar):
    """Tells its clock. Drafted tokens that are looked at count as well, as they move the place."""

    __slots__ = ("clock",)

    clock: MaskClock

    def fork(self) -> Self:
        copy = super().fork()
        copy.clock = self.clock
        return copy

    def allowed(self, held_back: Sequence[int]) -> NDArray[uint8] | None:
        began_s = time.thread_time()
        bits = super().allowed(held_back)
        self.clock.taken_s += time.thread_time() - began_s
        self.clock.num_asked += 1
        return bits

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        began_s = time.thread_time()
        count = super().num_allowed(token_ids)
        self.clock.taken_s += time.thread_time() - began_s
        return count


@dataclass(frozen=True)
class _TimedGrammar(CompiledGrammar):
    clock: MaskClock

    def begin(self) -> PlaceInGrammar:
        place = _TimedPlace(self.matcher, self.end_token_ids, self.vocab_size)
        place.clock = self.clock
        return place


class TimedCompiler(GrammarCompiler):
    """Its grammars tell `clock` what their masks take."""

    def __init__(self, inner: GrammarCompiler) -> None:
        self.clock = MaskClock()
        self._inner = inner

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        compiled = self._inner.compile(grammar).result()
        ends, size = compiled.end_token_ids, compiled.vocab_size
        found: Future[CompiledGrammar] = Future()
        found.set_result(_TimedGrammar(compiled.matcher, ends, size, self.clock))
        return found


class DraftCell(msgspec.Struct, frozen=True, kw_only=True):
    """One drafter and grammar. Accept lengths: tokens of a row's round, the last one included."""

    drafter: str
    grammar: str
    masked: Interval
    unmasked: Interval
    gain: Interval  # of the former over the latter
    is_equal: bool  # the texts, with both and without speculation
    mask_ms: float  # of a row's round, where drafts are masked
    unmasked_ms: float  # where they are not
    plain_ms: float  # and without speculation
    num_masks: float  # of a row's round, where drafts are masked


def measure(
    target: Path,
    choices: Sequence[DrafterChoice],
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    advance: Callable[[str], None],
) -> list[DraftCell]:
    """Every prompt under every grammar and drafter."""
    model = load_plainly(target)
    size = EngineSize(AT_ONCE, max(map(len, prompts)) + num_tokens)
    grammars = TimedCompiler(compiler_of(target, read_spec(target)))
    jobs = _jobs(prompts, num_tokens)

    def run(speculating: Speculating | None, name: str) -> "_Runs":
        engine = Engine(model, size, speculating, grammars)
        runs: list[Run] = []
        before = msgspec.structs.replace(grammars.clock)
        for job in jobs[name]:
            advance(f"drafts, {name}")
            runs.append(engine.run(job))
        clock = MaskClock(
            grammars.clock.taken_s - before.taken_s, grammars.clock.num_asked - before.num_asked
        )
        return _Runs([answer for one in runs for answer in one.answers], clock)

    plain = {name: run(None, name) for name in GRAMMARS}
    cells: list[DraftCell] = []
    for choice, name in itertools.product(choices, GRAMMARS):
        drafter = load_choice(
            choice,
            target,
            model,
            num_context_tokens=size.num_context_tokens,
            max_positions=size.max_positions(choice.gamma, model.config),
        )
        masked, unmasked = (
            run(
                Speculating(
                    drafter=drafter,
                    method=VerificationMethod.COUPLED,
                    gamma=choice.gamma,
                    num_kept=DEFAULT_NUM_KEPT,
                    keeps_to_grammars=keeps,
                ),
                name,
            )
            for keeps in (True, False)
        )
        cells.append(_cell(choice.label, name, masked, unmasked, plain[name]))
    return cells


def _jobs(prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[str, list[Job]]:
    """By grammar, the prompts in groups of as many as are asked at once."""
    return {
        name: [
            Job(
                prompts=prompts[first : first + AT_ONCE],
                seeds=range(first, first + len(prompts[first : first + AT_ONCE])),
                num_tokens=num_tokens,
                temperature=1.0,
                grammar=grammar,
            )
            for first in range(0, len(prompts), AT_ONCE)
        ]
        for name, grammar in GRAMMARS.items()
    }


def num_steps(num_drafters: int, num_prompts: int) -> int:
    """Times that `measure` advances."""
    return (1 + 2 * num_drafters) * len(GRAMMARS) * -(-num_prompts // AT_ONCE)


class _Runs(msgspec.Struct, frozen=True):
    answers: list[Answer]
    clock: MaskClock

    @property
    def accept_len(self) -> Rate:
        return Rate.of(
            [
                (sum(each.num_emitted for each in answer.rounds), len(answer.rounds))
                for answer in self.answers
            ]
        )

    @property
    def num_rounds(self) -> int:
        """Of all rows, those of their prompts included, whose tokens are masked as well."""
        return sum(1 + len(answer.rounds) for answer in self.answers)

    @property
    def mask_ms(self) -> float:
        return 1e3 * self.clock.taken_s / self.num_rounds

    @property
    def texts(self) -> list[list[int]]:
        return [answer.token_ids for answer in self.answers]


def _cell(drafter: str, grammar: str, masked: _Runs, unmasked: _Runs, plain: _Runs) -> DraftCell:
    return DraftCell(
        drafter=drafter,
        grammar=grammar,
        masked=interval(masked.accept_len),
        unmasked=interval(unmasked.accept_len),
        gain=ratio(masked.accept_len, unmasked.accept_len),
        is_equal=masked.texts == unmasked.texts == plain.texts,
        mask_ms=masked.mask_ms,
        unmasked_ms=unmasked.mask_ms,
        plain_ms=plain.mask_ms,
        num_masks=masked.clock.num_asked / masked.num_rounds,
    )
