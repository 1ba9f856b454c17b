# pyright: strict
"""The interleaved run: every group of prompts goes to all arms in turn before the next group.

Arms of a group follow each other within seconds and their order rotates, so that a slower spell of
the machine meets all of them. The first jobs of every arm are thrown away.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from bench.domains import GreedyCheck
from bench.sync_speed.plan import Plan
from bench.sync_speed.records import Arm, SpeculateJob, SpeculateTrace

_WARM_UP_GROUPS = 1


class Asked(Protocol):
    """A pinned child."""

    def ask(self, job: SpeculateJob) -> SpeculateTrace: ...


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all arms of a comparison share."""

    ballast: str
    batch_size: int
    domain: str
    temperature: float


Group = dict[Arm, SpeculateTrace]


class Prompts:
    """The prompts of every domain, and those of them that greedy decoding is measured on.

    All of them where nobody has looked at their greedy text.
    """

    def __init__(
        self, by_domain: Mapping[str, list[list[int]]], greedy: Mapping[str, GreedyCheck]
    ) -> None:
        self.by_domain = by_domain
        self.greedy = greedy

    @property
    def longest(self) -> int:
        return max(len(prompt) for prompts in self.by_domain.values() for prompt in prompts)

    def groups(self, setting: Setting, plan: Plan) -> list[list[list[int]]]:
        """Groups of different prompts; none where greedy text is too repetitive to measure."""
        prompts = self.by_domain[setting.domain]
        check = self.greedy.get(setting.domain)
        if setting.temperature == 0 and check is not None:
            if not check.is_measurable(plan.min_greedy_prompts):
                return []
            prompts = [prompts[place] for place in check.qualifying]
        size = setting.batch_size
        count = min(plan.groups_of(size), len(prompts) // size)
        return [prompts[size * g : size * (g + 1)] for g in range(count)]


class Interleaved:
    """Runs the plan on one target."""

    def __init__(
        self,
        child: Asked,
        arms: Sequence[Arm],
        prompts: Prompts,
        plan: Plan,
        advance: Callable[[str], None],
    ) -> None:
        """`arms` begin with plain decoding. `advance` is told what comes next."""
        self._child = child
        self._arms = arms
        self._prompts = prompts
        self._plan = plan
        self._advance = advance

    def run(self, setting: Setting) -> list[Group]:
        """One entry a group; empty where nothing can be measured."""
        groups = self._prompts.groups(setting, self._plan)
        arms = arms_of(self._arms, setting.temperature)
        for prompts in groups[:_WARM_UP_GROUPS]:
            for arm in arms:
                self._child.ask(self._job(arm, prompts, setting, first_seed=0))
        found: list[Group] = []
        for number, prompts in enumerate(groups):
            self._advance(
                f"{setting.ballast}, batch {setting.batch_size}, {setting.domain}, "
                f"temperature {setting.temperature:g}: {number + 1}/{len(groups)}"
            )
            turn = number % len(arms)
            first_seed = number * setting.batch_size
            found.append(
                {
                    arm: self._child.ask(self._job(arm, prompts, setting, first_seed))
                    for arm in (*arms[turn:], *arms[:turn])
                }
            )
        return found

    def _job(
        self, arm: Arm, prompts: list[list[int]], setting: Setting, first_seed: int
    ) -> SpeculateJob:
        return SpeculateJob(
            arm=arm,
            prompts=prompts,
            seeds=list(range(first_seed, first_seed + len(prompts))),
            num_tokens=self._plan.num_tokens,
            temperature=setting.temperature,
            max_rows=max(self._plan.batch_sizes),
            max_len=self._prompts.longest + self._plan.num_tokens,
            ignore_eos=self._plan.ignore_eos,
        )


def arms_of(arms: Sequence[Arm], temperature: float) -> list[Arm]:
    """At temperature 0 all methods are one: one arm a drafter is enough."""
    if temperature:
        return list(arms)
    first = {arm.label: arm for arm in reversed(arms)}
    return [arm for arm in arms if first[arm.label] is arm]
