# pyright: strict
"""What a grammar costs: the same prompts with and without one, in turn, of one service.

Ends are ignored, so that every answer has as many tokens either way: the forms here go on for as
long as they are let. Times are seconds.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.bootstrap import Interval
from bench.services.rates import (
    accept_len,
    processor_s,
    seconds_per_round,
    spread,
    spread_ratio,
    value,
)
from bench.services.records import Job, Trace
from bench.services.running import Running, kv_memory_flags, running
from bench.services.service import OFF, SYNC, Service
from specserve.client import Prompt
from specserve.types import Grammar, GrammarKind

SERVICES = {
    mode: Service(name=mode, mode=mode, flags=("--speculation", mode)) for mode in (OFF, SYNC)
}
_MANY = 100  # items at least, more than an answer here has room for
_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "kind": {"enum": ["small", "large"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}


def _list_of(item: dict[str, Any]) -> Grammar:
    schema = {"type": "array", "items": item, "minItems": _MANY}
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


GRAMMARS = {
    "any objects": _list_of({"type": "object"}),
    "objects of a schema": _list_of(_ITEM),
    "regular expression": Grammar(GrammarKind.REGEX, "([A-Z][a-z]{1,12}( [a-z]{1,12}){2,20}[.] )*"),
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every grammar and mode; `longest` is the longest prompt, in tokens."""

    loads: Sequence[int]  # requests at a time
    num_pairs: int
    num_tokens: int  # of an answer
    longest: int

    @property
    def num_steps(self) -> int:
        """Times that `measure` advances."""
        return len(SERVICES) * len(self.loads) * len(GRAMMARS) * (self.num_pairs + 1)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One grammar in one mode, so many requests at a time, over pairs of jobs."""

    mode: str
    grammar: str
    num_rows: int
    tpot_ratio: Interval | None  # seconds a token, with the grammar over without
    tpot: Interval | None  # without
    round_ratio: Interval | None  # seconds a round
    target_ms: float | None  # processor time of a round of the target that the grammar adds
    accept_len: Interval | None  # with the grammar
    accept_len_without: Interval | None


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same job, asked both ways right after each other."""

    free: Trace
    kept: Trace  # to the grammar


def seconds_per_token(trace: Trace) -> tuple[float, float]:
    """Of one row."""
    return trace.decode_s, sum(delta.num_tokens for delta in trace.deltas) / len(trace.rows)


def measure(
    target: Path,
    flags: Sequence[str],
    prompts: Sequence[Prompt],
    plan: Plan,
    *,
    runner: asyncio.Runner,
    advance: Callable[[str], None],
) -> list[Cell]:
    """One pair of each cell is a warm-up that does not count."""
    memory = kv_memory_flags(target, 0, max(plan.loads) * (plan.longest + plan.num_tokens))
    common = ["--target", str(target), "--generation-config", "none", *memory, *flags]
    chosen = itertools.cycle(prompts)
    cells: list[Cell] = []
    for mode, service in SERVICES.items():
        with running([service], common, runner) as started:
            for num_rows, name in itertools.product(plan.loads, GRAMMARS):
                pairs: list[Pair] = []
                for number in range(plan.num_pairs + 1):
                    advance(f"{mode}, {num_rows} at a time, {name}")
                    job = Job(
                        prompts=list(itertools.islice(chosen, num_rows)),
                        num_tokens=plan.num_tokens,
                        temperature=1.0,
                        seeds=[number * num_rows + row for row in range(num_rows)],
                    )
                    pairs.append(_pair(started[service], job, GRAMMARS[name], number))
                cells.append(cell(mode, name, num_rows, pairs[1:]))
    return cells


def _pair(asked: Running, job: Job, grammar: Grammar, number: int) -> Pair:
    """The first one changes from pair to pair."""
    kept_job = msgspec.structs.replace(job, grammar=grammar)
    if number % 2:
        kept = asked.ask(kept_job)
        return Pair(free=asked.ask(job), kept=kept)
    free = asked.ask(job)
    return Pair(free=free, kept=asked.ask(kept_job))


def cell(mode: str, grammar: str, num_rows: int, pairs: Sequence[Pair]) -> Cell:
    free, kept = [pair.free for pair in pairs], [pair.kept for pair in pairs]
    is_plain = mode == OFF
    free_s, kept_s = (value(traces, processor_s("target")) for traces in (free, kept))
    return Cell(
        mode=mode,
        grammar=grammar,
        num_rows=num_rows,
        tpot_ratio=spread_ratio(kept, free, seconds_per_token),
        tpot=spread(free, seconds_per_token),
        round_ratio=spread_ratio(kept, free, seconds_per_round),
        target_ms=None if free_s is None or kept_s is None else 1e3 * (kept_s - free_s),
        accept_len=None if is_plain else spread(kept, accept_len),
        accept_len_without=None if is_plain else spread(free, accept_len),
    )
