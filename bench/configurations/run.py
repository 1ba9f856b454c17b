"""The run: pass after pass, every arm is started alone and asked the pass's share of requests.

One service at a time, since several large targets do not fit one machine's memory and even an idle
one wakes now and then. What disturbs the machine for longer than a pass meets all arms alike; their
order rotates from pass to pass.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.configurations.arms import Plan
from bench.configurations.rows import Found, Group, Setting
from bench.conversations import Question, Questions
from bench.services.machine_load import client_beside
from bench.services.records import Job, Trace
from bench.services.running import Running, kv_memory_flags, running
from bench.services.service import Arm, Service, arms_of
from specserve.sampling.verification.method import VerificationMethod


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    target: Path
    ballast: str
    ballast_params: int  # 0: none
    services: tuple[Service, ...]  # the plain one first
    plan: Plan
    is_pinned: bool
    command: str

    @property
    def flags(self) -> list[str]:
        """Of every service."""
        flags = ["--target", str(self.target), "--generation-config", "none"]
        flags += ["--ballast", str(self.ballast_params)] if self.ballast_params else []
        flags += [] if self.is_pinned else ["--oversubscribe"]
        return flags


class Run:
    """Measures everything that the options ask for."""

    def __init__(
        self,
        options: Options,
        questions: Questions,
        runner: asyncio.Runner,
        advance: Callable[[str], None],
    ) -> None:
        """`advance` is told what comes next."""
        self._options = options
        self._plan = options.plan
        self._questions = questions
        self._runner = runner
        self._advance = advance
        self._traces: dict[Setting, dict[int, dict[Arm, Trace]]] = {}
        longest = max(len(question.token_ids) for question in questions.asked)
        self._flags = options.flags + kv_memory_flags(
            options.target, options.ballast_params, longest + questions.max_tokens
        )

    @property
    def found(self) -> Found:
        """Requests that all arms have answered."""
        return {
            setting: [
                Group(number, traces)
                for number, traces in sorted(by_number.items())
                if len(traces) == len(self._arms(setting))
            ]
            for setting, by_number in self._traces.items()
        }

    def passes(self) -> Iterator[int]:
        """Measure one pass after the other; yields its number when it is done."""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        chunks, services = _chunks(self._questions, self._plan), self._options.services
        for number, chunk in enumerate(chunks):
            turn = number % len(services)
            for service in (*services[turn:], *services[:turn]):
                self._advance(f"{service.name}, pass {number + 1}/{len(chunks)}")
                with (
                    running([service], self._flags, self._runner) as started,
                    client_beside(cores, is_pinned=self._options.is_pinned),
                ):
                    for setting in self._settings():
                        self._ask_all(started[service], service, setting, chunk)
            yield number

    def _settings(self) -> list[Setting]:
        return [
            Setting(
                ballast=self._options.ballast,
                domain=self._questions.name,
                temperature=temperature,
            )
            for temperature in self._plan.temperatures
        ]

    def _arms(self, setting: Setting) -> list[Arm]:
        return arms_of(self._options.services, self._plan.methods, setting.temperature)

    def _ask_all(
        self,
        started: Running,
        service: Service,
        setting: Setting,
        chunk: Sequence[tuple[int, Question]],
    ) -> None:
        traces = self._traces.setdefault(setting, {})
        for arm in (arm for arm in self._arms(setting) if arm.service == service):
            self._warm_up(started, arm, setting)
            for number, question in chunk:
                found = traces.setdefault(number, {})
                found[arm] = started.ask(self._job(arm, question, setting, seed=number))

    def _warm_up(self, started: Running, arm: Arm, setting: Setting) -> None:
        """At least one request, with seeds of which none is measured."""
        asked = self._questions.asked
        ends_s = time.monotonic() + self._plan.warm_up_s
        for seed in itertools.count(len(asked)):
            started.ask(self._job(arm, asked[seed % len(asked)], setting, seed=seed))
            if time.monotonic() >= ends_s or not arm.service.has_draft_process:
                return

    def _job(self, arm: Arm, question: Question, setting: Setting, *, seed: int) -> Job:
        said = question.prompt
        return Job(
            prompts=[said if isinstance(said, str) else list(said)],
            num_tokens=self._plan.max_tokens,
            temperature=setting.temperature,
            # Without a seed drafts are verified by the service's own method.
            seeds=[seed] if arm.method is VerificationMethod.COUPLED else None,
            sampling=self._plan.sampling,
            ignore_eos=not self._questions.is_chat,
        )


def num_steps(options: Options, questions: Questions) -> int:
    """How often a service is started."""
    return len(_chunks(questions, options.plan)) * len(options.services)


def _chunks(questions: Questions, plan: Plan) -> list[list[tuple[int, Question]]]:
    """Every request with its number, dealt out to the passes."""
    numbered = list(enumerate(questions.asked))
    count = min(plan.num_passes, len(numbered))
    return [numbered[first::count] for first in range(count)]
