# pyright: strict
"""The run: load after load, in each of which all arms take turns, as often as is wanted.

All services are alive at once and only one of them is asked. Arms of a comparison follow each
other, in another order every time, so that a slower spell of the machine meets all of them. Where
services are to be fresh, all loads have their first repeat before any has its second, which others
serve. What a former run of the command has measured is not measured again.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.conversations import Question, Questions
from bench.services.machine_load import client_beside
from bench.services.running import Running, kv_memory_flags, running
from bench.sweep.arms import NamedArm
from bench.sweep.arrivals import arrival_times
from bench.sweep.asking import Asked, Turn, ask
from bench.sweep.kept import Kept
from bench.sweep.plan import Load, Plan
from bench.sweep.records import Cell
from bench.sweep.time_budget import affordable, allowance_s, expected_s
from specserve.client import Prompt
from specserve.errors import SpecserveError

_SEEDS_APART = 100_000  # between comparisons
_WARM_UP_SEED = 2**40  # beyond all that are measured
_WARM_UP_TOKENS = 48
_WARM_UP_IN_FLIGHT = 4  # of an open loop
_SPARE_KV = 1.25
_USUAL_ROWS = 64  # that a service runs at once


class Comparison(NamedTuple):
    """What all arms are asked before the next one: a place of the kept cells."""

    temperature: float
    load: Load
    repeat: int

    def __str__(self) -> str:
        return f"{self.load}, T {self.temperature:g}, repeat {self.repeat + 1}"


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    target: Path
    ballast: int  # parameters; 0: none
    arms: tuple[NamedArm, ...]
    plan: Plan
    questions: Questions
    flags: tuple[str, ...]  # of all services
    is_pinned: bool
    texts_may_differ: bool = False  # on a device whose batches change them

    def service_flags(self) -> list[str]:
        """Of every service, with room for the largest load."""
        in_flight = max(self._most_in_flight(load) for load in self.plan.loads)
        asked, most = self.questions.asked, self.questions.max_tokens
        longest = sorted((len(q.token_ids) + most for q in asked), reverse=True)
        room = sum(itertools.islice(itertools.cycle(longest), in_flight))
        flags = ["--target", str(self.target), "--generation-config", "none", *self.flags]
        flags += ["--ballast", str(self.ballast)] if self.ballast else []
        flags += ["--max-batch-rows", str(in_flight)] if in_flight > _USUAL_ROWS else []
        return flags + kv_memory_flags(self.target, self.ballast, room, spare=_SPARE_KV)

    def _most_in_flight(self, load: Load) -> int:
        """Of an open loop all that arrive, if nothing is answered meanwhile."""
        return load.in_flight or min(_USUAL_ROWS, self.plan.requests_of(load))


class Run:
    """Measures what is missing in `kept`."""

    def __init__(
        self,
        options: Options,
        kept: Kept,
        *,
        elapsed_s: Callable[[], float],
        advance: Callable[[str], None],
        summarise: Callable[[], None],
    ) -> None:
        """`elapsed_s`: of all runs. `advance` hears what is next; `summarise` is called often."""
        self._options, self._plan, self._kept = options, options.plan, kept
        self._elapsed_s, self._advance, self._summarise = elapsed_s, advance, summarise
        self._session = len(kept.sessions) - 1
        self._request_s: dict[tuple[float, Load, str], float] = {}

    def measure(self, runner: asyncio.Runner) -> None:
        """Raises SpecserveError where a service fails or an arm changes a text."""
        left = missing(self._options.arms, self._plan, self._kept.cells)
        serving: int | None = None
        for number, (comparison, _) in enumerate(left):
            life = comparison.repeat if self._plan.fresh else 0
            if life != serving:
                serving = life
                self._serve(left[number:], runner)

    def _serve(
        self, left: Sequence[tuple[Comparison, Sequence[NamedArm]]], runner: asyncio.Runner
    ) -> None:
        """What the same services are to measure of it, one after the other from the first on."""
        own = [each for each in left if not self._plan.fresh or each[0].repeat == left[0][0].repeat]
        names = {arm.name for _, arms in own for arm in arms}
        services = [arm.service for arm in self._options.arms if arm.name in names]
        cores = tuple(sorted(os.sched_getaffinity(0)))
        flags = self._options.service_flags()
        with (
            running(services, flags, runner) as started,
            client_beside(cores, is_pinned=self._options.is_pinned),
        ):
            by_name = {service.name: started[service] for service in services}
            warm: tuple[float, Load] | None = None
            for number, (comparison, arms) in enumerate(own):
                if warm != comparison[:2]:
                    warm = comparison[:2]
                    self._warm_up(comparison, _arms_at(warm, own[number:]), by_name)
                self._compare(comparison, arms, by_name, left[number:])
                self._summarise()

    def _warm_up(
        self, comparison: Comparison, arms: Sequence[NamedArm], services: Mapping[str, Running]
    ) -> None:
        """On other seeds; what learns gets its time. How long answers take is noted."""
        temperature, load, _ = comparison
        self._advance(f"warming up: {load}, T {temperature:g}")
        num_tokens = min(self._plan.max_tokens, _WARM_UP_TOKENS)
        for arm in arms:
            has_time = arm.learns and not self._is_late()
            ends_s = time.monotonic() + (self._plan.warm_up_s if has_time else 0.0)
            closed = Load(in_flight=load.in_flight or _WARM_UP_IN_FLIGHT)
            seed = _WARM_UP_SEED
            while True:
                turn = self._turn(closed, temperature, seed, closed.in_flight, num_tokens)
                found = ask(services[arm.name], turn)
                if time.monotonic() >= ends_s:
                    break
                seed += closed.in_flight
            whole_s = found.took_s * self._plan.max_tokens / num_tokens / closed.in_flight
            self._request_s[temperature, load, arm.name] = (
                whole_s if load.is_closed else max(whole_s, 1 / load.rate)
            )

    def _compare(
        self,
        comparison: Comparison,
        arms: Sequence[NamedArm],
        services: Mapping[str, Running],
        left: Sequence[tuple[Comparison, Sequence[NamedArm]]],
    ) -> None:
        temperature, load, repeat = comparison
        count, seed = self._count(comparison, arms, left), self._seed(comparison)
        turn = self._turn(load, temperature, seed, count, self._plan.max_tokens, repeat=repeat)
        for arm in arms:
            self._advance(f"{comparison}: {arm.name}")
            found = ask(services[arm.name], turn)
            self._request_s[temperature, load, arm.name] = found.took_s / count
            cell = self._cell(comparison, arm, found)
            if not self._options.texts_may_differ:
                check_texts(cell, self._kept.cells, turn.seeds)
            self._kept.keep(cell)

    def _cell(self, comparison: Comparison, arm: NamedArm, found: Asked) -> Cell:
        return Cell(
            load=comparison.load,
            temperature=comparison.temperature,
            repeat=comparison.repeat,
            arm=arm.name,
            answers=found.answers,
            took_s=found.took_s,
            counters=found.counters,
            foreign_share=found.foreign_share,
            session=self._session,
            elapsed_s=self._elapsed_s(),
        )

    def _count(
        self,
        comparison: Comparison,
        arms: Sequence[NamedArm],
        left: Sequence[tuple[Comparison, Sequence[NamedArm]]],
    ) -> int:
        """As many as other arms of the comparison were asked before, or what there is time for."""
        for cell in self._kept.cells:
            if cell.place == comparison:
                return len(cell.answers)
        temperature, load, _ = comparison
        planned, budget_s = self._plan.requests_of(load), self._plan.budget_s
        if budget_s is None:
            return planned
        expected = [expected_s(each.load, self._plan, len(some)) for each, some in left]
        loads_to_come = _warmed(left, self._plan) - _warmed([(comparison, arms)], self._plan)
        warm_up_s = self._plan.warm_up_s * sum(arm.learns for arm in self._options.arms)
        left_s = budget_s - self._elapsed_s() - warm_up_s * len(loads_to_come)
        return affordable(
            planned,
            load.in_flight or 1,
            request_s=sum(self._request_s[temperature, load, arm.name] for arm in arms),
            allowance_s=allowance_s(left_s, expected),
        )

    def _turn(
        self,
        load: Load,
        temperature: float,
        seed: int,
        count: int,
        max_tokens: int,
        *,
        repeat: int = 0,
    ) -> Turn:
        asked = self._options.questions.asked
        first = repeat * self._plan.requests_of(load)
        chosen = [asked[(first + each) % len(asked)] for each in range(count)]
        times = () if load.is_closed else arrival_times(load.arrivals, load.rate, count, seed)
        return Turn(
            load=load,
            prompts=[_said(question) for question in chosen],
            seeds=range(seed, seed + count),
            arrivals_s=times,
            salt=f"{load} {temperature:g} {seed} {self._session}",
            max_tokens=max_tokens,
            temperature=temperature,
            sampling=self._plan.sampling,
            ignore_eos=not self._options.questions.is_chat,
        )

    def _seed(self, comparison: Comparison) -> int:
        place = self._plan.loads.index(comparison.load) * self._plan.repeats + comparison.repeat
        return place * _SEEDS_APART

    def _is_late(self) -> bool:
        budget_s = self._plan.budget_s
        return budget_s is not None and self._elapsed_s() > budget_s


def _said(question: Question) -> Prompt:
    said = question.prompt
    return said if isinstance(said, str) else list(said)


def missing(
    arms: Sequence[NamedArm], plan: Plan, cells: Sequence[Cell]
) -> list[tuple[Comparison, list[NamedArm]]]:
    """Comparisons in their order, with the arms that have not had their turn, in theirs."""
    done = {(cell.place, cell.arm) for cell in cells}
    found: list[tuple[Comparison, list[NamedArm]]] = []
    for comparison in _comparisons(plan):
        load, repeat = comparison.load, comparison.repeat
        taking_part = [arm for arm in arms if arm.takes_part(load, plan)]
        turn = repeat % len(taking_part)
        order = (*taking_part[turn:], *taking_part[:turn])
        left = [arm for arm in order if (tuple(comparison), arm.name) not in done]
        if left:
            found.append((comparison, left))
    return found


def _comparisons(plan: Plan) -> list[Comparison]:
    """All of them, in their order."""
    places = itertools.product(plan.temperatures, plan.loads, range(plan.repeats))
    found = [Comparison(*place) for place in places]
    return sorted(found, key=lambda each: each.repeat) if plan.fresh else found


def _arms_at(
    place: tuple[float, Load], left: Sequence[tuple[Comparison, Sequence[NamedArm]]]
) -> list[NamedArm]:
    """Those that have a turn left there: of a comparison that was stopped, some have none."""
    found = {arm.name: arm for each, arms in left if each[:2] == place for arm in arms}
    return list(found.values())


def num_steps(left: Sequence[tuple[Comparison, Sequence[NamedArm]]], plan: Plan) -> int:
    """Turns, and what has to be warmed up for them."""
    return len(_warmed(left, plan)) + sum(len(arms) for _, arms in left)


def _warmed(
    left: Sequence[tuple[Comparison, Sequence[NamedArm]]], plan: Plan
) -> set[tuple[float, Load, int]]:
    """What services are warmed up for: every load, once in the life of each service."""
    return {(c.temperature, c.load, c.repeat if plan.fresh else 0) for c, _ in left}


def check_texts(cell: Cell, others: Sequence[Cell], seeds: Sequence[int]) -> None:
    """Raises SpecserveError where a text is not that of an arm which was asked the same."""
    for other in others:
        if other.place != cell.place:
            continue
        for seed, ours, theirs in zip(seeds, cell.answers, other.answers, strict=True):
            if ours.text != theirs.text:
                raise SpecserveError(
                    f"{cell.load}, T {cell.temperature:g}, repeat {cell.repeat + 1}, seed {seed}: "
                    f"the text of {cell.arm} is not that of {other.arm}; speculation must not "
                    "change texts: run `specserve audit`"
                )
        return
