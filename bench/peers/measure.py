# pyright: strict
"""The interleaved run: all arms alive, asked in turn with the same prompts, the order rotating.

So whatever disturbs the machine for longer than one pass disturbs everybody alike. An arm that does
not start, or fails, is absent from then on; the others go on.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.peers.arms import arms, can_answer
from bench.peers.engines import Engine, pinned
from bench.peers.plan import Plan
from bench.peers.records import Absent, Arm, Job, Measurement
from bench.peers.starting import ASYNC, AUTO, Setup, start
from bench.services.machine_load import ForeignLoad
from specserve.errors import SpecserveError


@dataclass
class Found:
    """What there is so far."""

    measurements: list[Measurement] = field(default_factory=list[Measurement])
    absent: list[Absent] = field(default_factory=list[Absent])


class Run:
    """Measures what a plan asks for; `found` grows meanwhile."""

    def __init__(
        self,
        plan: Plan,
        setup: Setup,
        prompts: Sequence[list[int]],
        quantised: str | None,
        advance: Callable[[str], None],
    ) -> None:
        """`advance` is told what comes next."""
        self.found = Found()
        self._plan = plan
        self._setup = setup
        self._prompts = prompts
        self._quantised = quantised
        self._advance = advance
        self._cores = sorted(os.sched_getaffinity(0))

    def measure(self) -> Found:
        """Everything, one number of threads after the other."""
        for threads in self._plan.threads:
            cores = self._cores[:threads]
            # The client has the cores that no server computes on, where there are any.
            with ExitStack() as stack, pinned(self._cores[threads:] or self._cores):
                self._measure(self._started(threads, cores, stack))
        return self.found

    def _started(self, threads: int, cores: list[int], stack: ExitStack) -> dict[Arm, Engine]:
        engines: dict[Arm, Engine] = {}
        for arm in arms(self._plan, threads, self._quantised):
            self._advance(f"starting {arm.name}, {threads} threads")
            try:
                engines[arm] = stack.enter_context(start(self._setup, arm, cores))
            except (SpecserveError, OSError) as error:
                self._leave(arm, error)
        return engines

    def _measure(self, engines: dict[Arm, Engine]) -> None:
        for num_requests in self._plan.num_requests:
            for arm in list(engines):
                if can_answer(arm, num_requests):
                    self._advance(f"warming up {arm.name}, {num_requests} requests")
                    self._warm_up(arm, engines, num_requests)
            for number in range(self._plan.num_passes):
                self._advance(f"pass {number + 1}, {num_requests} requests")
                self._pass(number, num_requests, engines)

    def _pass(self, number: int, num_requests: int, engines: dict[Arm, Engine]) -> None:
        taking_part = [arm for arm in engines if can_answer(arm, num_requests)]
        turn = number % len(taking_part) if taking_part else 0
        job = self._job(number, num_requests)
        for arm in taking_part[turn:] + taking_part[:turn]:
            load = ForeignLoad({*engines[arm].pids, os.getpid()})
            try:
                call = engines[arm].ask(job)
            except (SpecserveError, OSError) as error:
                self._leave(arm, error)
                del engines[arm]
                continue
            measurement = Measurement(
                arm=arm,
                num_requests=num_requests,
                pass_number=number,
                call=call,
                foreign_share=load.share(),
            )
            self.found.measurements.append(measurement)

    def _warm_up(self, arm: Arm, engines: dict[Arm, Engine], num_requests: int) -> None:
        """Once; who chooses by what he has measured gets time to do so."""
        job = self._job(self._plan.num_passes, num_requests)
        seconds = self._plan.warm_up_s if arm.mode in (ASYNC, AUTO) else 0.0
        try:
            engines[arm].ask(job)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                engines[arm].ask(job)
        except (SpecserveError, OSError) as error:
            self._leave(arm, error)
            del engines[arm]

    def _job(self, number: int, num_requests: int) -> Job:
        """The next prompts of each pass, starting over when they run out."""
        first = number * num_requests
        chosen = [self._prompts[(first + row) % len(self._prompts)] for row in range(num_requests)]
        return Job(prompts=chosen, num_tokens=self._plan.num_tokens)

    def _leave(self, arm: Arm, error: Exception) -> None:
        reason = " ".join(str(error).split())
        self.found.absent.append(Absent(arm=arm, reason=reason))
