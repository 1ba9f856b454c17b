# pyright: strict
"""The interleaved run: every group of prompts goes to all arms in turn before the next group.

Arms of a group follow each other within seconds and their order rotates, so that a slower spell of
the machine meets all of them. Every arm warms up on other prompts, with other seeds.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.regimes.arms import Arm, Service
from bench.regimes.plan import Plan
from bench.regimes.records import Job, Setting, Trace
from specserve.client import Prompt
from specserve.sampling.verification.method import VerificationMethod

_LATE_GROUPS = 2  # of a setting, once time is up


class Asked(Protocol):
    """A running service."""

    def ask(self, job: Job) -> Trace: ...


@dataclass(frozen=True)
class Group:
    """The same prompts continued by all arms of a contest; `number` is their place in the plan."""

    number: int
    traces: dict[Arm, Trace]

    @property
    def foreign_share(self) -> float:
        """The most of a core that others used while one of the arms worked."""
        return max(trace.foreign_share for trace in self.traces.values())

    @property
    def waited_share(self) -> float:
        """The largest share of its time in which the target of an arm had no core."""
        return max(trace.waited_share for trace in self.traces.values())


Found = dict[Setting, list[Group]]


class Interleaved:
    """Runs the settings of one contest over its running services."""

    def __init__(
        self,
        services: Mapping[Service, Asked],
        plan: Plan,
        *,
        is_late: Callable[[], bool],
        advance: Callable[[str], None],
    ) -> None:
        """Once `is_late`, a setting is cut short; `advance` is told what comes next."""
        self._services = services
        self._plan = plan
        self._is_late = is_late
        self._advance = advance

    def run(
        self,
        setting: Setting,
        arms: Sequence[Arm],
        groups: Sequence[Sequence[Prompt]],
        others: Sequence[Sequence[Prompt]],
    ) -> Iterator[Group]:
        """One group after the other, each as soon as it is measured; `others` are to warm up on."""
        self._warm_up(setting, arms, others, first_number=len(groups))
        for number, prompts in enumerate(groups):
            self._advance(f"{setting}: {number + 1}/{len(groups)}")
            if number >= _LATE_GROUPS and self._is_late():
                continue
            turn = number % len(arms)
            order = (*arms[turn:], *arms[:turn])
            yield Group(number, {arm: self._ask(arm, prompts, setting, number) for arm in order})

    def _warm_up(
        self,
        setting: Setting,
        arms: Sequence[Arm],
        others: Sequence[Sequence[Prompt]],
        first_number: int,
    ) -> None:
        """Seeds are those of groups from `first_number` on: nobody has seen what is measured."""
        for arm in arms if others else ():
            is_long = arm.service.learns and not self._is_late()
            ends_s = time.monotonic() + (self._plan.warm_up_s if is_long else 0.0)
            for number in itertools.count(first_number):
                self._ask(arm, others[number % len(others)], setting, number)
                if time.monotonic() >= ends_s:
                    break

    def _ask(self, arm: Arm, prompts: Sequence[Prompt], setting: Setting, number: int) -> Trace:
        first_seed = number * setting.batch_size
        is_seeded = arm.method is VerificationMethod.COUPLED
        job = Job(
            prompts=prompts,
            num_tokens=self._plan.num_tokens,
            temperature=setting.temperature,
            sampling=self._plan.sampling,
            ignore_eos=self._plan.ignore_eos,
            # Without a seed drafts are verified by the service's own method.
            seeds=list(range(first_seed, first_seed + len(prompts))) if is_seeded else None,
        )
        return self._services[arm.service].ask(job)
