# pyright: strict
"""Pass after pass every service is started alone, asked at once, and then under every load.

What it is asked first of all is measured apart: a fresh service has learned nothing. A pass begins
with the next load, so that each is the first one in some pass.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.conversations import Questions
from bench.flag_grid.cells import Cell, fresh
from bench.services.machine_load import client_beside
from bench.services.records import Job
from bench.services.running import Running, kv_memory_flags, running


class Load(msgspec.Struct, frozen=True):
    """What is asked."""

    temperature: float
    num_requests: int  # at once

    def __str__(self) -> str:
        noun = "request" if self.num_requests == 1 else "requests"
        return f"T {self.temperature:g}, {self.num_requests} {noun}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    loads: tuple[Load, ...]
    num_asked: int  # requests under a load, if it has groups enough
    num_first: int  # requests of a fresh service, one at a time
    num_passes: int
    max_tokens: int  # of an answer
    num_drawn: int  # cells
    seed: int  # of the draw

    def num_groups(self, load: Load) -> int:
        """Of as many requests as the load has at once; two at least, for an interval."""
        return max(2, self.num_asked // load.num_requests)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of requests, answered by one service in one pass."""

    cell: str
    load: Load
    is_first: bool  # by a fresh service
    number: int  # of the pass
    tokens: list[int]  # of each group
    seconds: list[float]


class Place(NamedTuple):
    """Where services come from."""

    target: Path
    ballast: int  # parameters; 0: none
    drafter: str
    is_pinned: bool = True

    def flags(self, longest: int) -> list[str]:
        """Of every service; `longest`: tokens of a request."""
        flags = ["--target", str(self.target), "--drafter", self.drafter]
        flags += ["--generation-config", "none"]
        flags += [] if self.is_pinned else ["--oversubscribe"]
        flags += ["--ballast", str(self.ballast)] if self.ballast else []
        return flags + kv_memory_flags(self.target, self.ballast, longest)


class Run:
    """Measures everything that the plan asks for."""

    def __init__(
        self,
        plan: Plan,
        place: Place,
        cells: Sequence[Cell],
        questions: Questions,
        advance: Callable[[str], None],
    ) -> None:
        """`advance` is told what comes next."""
        self.found: list[Measured] = []
        self._plan, self._place, self._cells, self._advance = plan, place, cells, advance
        self._prompts = [question.prompt for question in questions.asked]
        longest = max(len(question.token_ids) for question in questions.asked)
        most = max(load.num_requests for load in plan.loads)
        self._flags = place.flags(most * (longest + plan.max_tokens))

    def passes(self) -> Iterator[int]:
        """One after the other; yields its number when it is done."""
        for number in range(self._plan.num_passes):
            turn = number * len(self._cells) // self._plan.num_passes
            for cell in (*self._cells[turn:], *self._cells[:turn]):
                self._advance(f"{cell.name}, pass {number + 1}/{self._plan.num_passes}")
                with asyncio.Runner() as runner:
                    self._visit(cell, number, runner)
            yield number

    def _visit(self, cell: Cell, number: int, runner: asyncio.Runner) -> None:
        service = cell.service
        cores = tuple(sorted(os.sched_getaffinity(0)))
        loads = self._plan.loads
        turn = number % len(loads)
        with (
            fresh(cell.batch),
            running([service], self._flags, runner) as started,
            client_beside(cores, is_pinned=self._place.is_pinned),
        ):
            alone = msgspec.structs.replace(loads[turn], num_requests=1)
            self._measure(started[service], cell, alone, number, is_first=True)
            for load in (*loads[turn:], *loads[:turn]):
                self._measure(started[service], cell, load, number, is_first=False)

    def _measure(
        self, service: Running, cell: Cell, load: Load, number: int, *, is_first: bool
    ) -> None:
        """A group that is not counted comes before, but of a fresh service."""
        num_groups = self._plan.num_first if is_first else self._plan.num_groups(load)
        tokens: list[int] = []
        seconds: list[float] = []
        # Other texts in every pass, the same for all services.
        place = number * self._plan.num_asked
        for group in range(num_groups if is_first else num_groups + 1):
            prompts = [
                self._prompts[(place + each) % len(self._prompts)]
                for each in range(load.num_requests)
            ]
            place += load.num_requests
            job = Job(
                prompts=prompts,
                num_tokens=self._plan.max_tokens,
                temperature=load.temperature,
                seeds=None,
                ignore_eos=False,
            )
            trace = service.ask(job)
            if is_first or group:
                tokens.append(sum(map(len, trace.texts)))
                seconds.append(max(row.deltas[-1].at_s for row in trace.rows))
        self.found.append(
            Measured(
                cell=cell.name,
                load=load,
                is_first=is_first,
                number=number,
                tokens=tokens,
                seconds=seconds,
            )
        )
