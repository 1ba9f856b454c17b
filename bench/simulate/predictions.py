# pyright: strict
"""What cannot be run here: 4+1 and 8+2 on H100s, many requests, targets that share a draft process.

Targets and drafters are those of SSD, with what its table says of their parts; the service is ours,
so that misses decode plainly, are drafted for beside the target, or are waited for, as the planner
finds best. Beside every asynchronous figure stands the same hardware without a draft process: one
more device in the target, as if any number of devices could share a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.simulate.loads import as_load
from bench.simulate.published import BONUS, LLAMA, QWEN, RECOVERY, Family, engine_of
from bench.simulate.results import Load
from bench.simulate.service import Outcome, simulate
from bench.simulate.setting import Drafters, Requests, Setting, Topology
from bench.simulate.step_models import H100, chain_times, pace_of, roofline
from bench.simulate.texts import Texts

_LINK_S = 20e-6  # one way, between devices of one host
# Who chooses by what it measures has to measure it: so many times as long, of which the first part
# is not counted.
_LONGER, _LEARNING = 4, 0.6
_GAMMA = 6


# bench/results/gpu/NOTES.md, 2026-11-28: 64 rows with seeds take 40 ms a round on an H200 and the
# device computes little of that.
HOST_ROW_S = 0.6e-3


class System(NamedTuple):
    """A family on so many devices."""

    family: Family
    num_devices: int  # of the target
    num_processes: int

    @property
    def name(self) -> str:
        return f"{self.family.name}, {self.num_devices}+{self.num_processes}"


SYSTEMS = (System(QWEN, 4, 1), System(LLAMA, 4, 1), System(LLAMA, 8, 2))


def setting_of(system: System, num_at_once: int) -> Setting:
    """`auto`, with texts whose tokens stand as often as the mean of SSD's data sets says."""
    family, devices = system.family, system.num_devices
    speeds = [sync for sync, _ in family.by_data_set.values()]
    accept = engine_of(family, sum(speeds) / len(speeds)).accept
    pace = pace_of(1 / family.plain, H100, family.target, 4)
    drafts = chain_times(H100, family.draft)
    return Setting(
        roofline(H100, family.target, devices, pace=pace),
        Texts((accept,), recovery=RECOVERY, bonus=BONUS),
        Drafters(_GAMMA, drafts, drafts, link_s=_LINK_S),
        Topology(num_processes=system.num_processes),
        Requests(num_at_once, answer_len=512),
    )


def arms_of(system: System, setting: Setting) -> Mapping[str, Setting]:
    """By name; the topology that each runs on is part of it."""
    family, devices = system.family, system.num_devices
    more = devices + system.num_processes
    pace = pace_of(1 / family.plain, H100, family.target, 4)
    whole = replace(setting, steps=roofline(H100, family.target, more, pace=pace))
    alone = Topology()
    return {
        f"off, {devices}+0": replace(setting, mode="off", topology=alone),
        f"sync, {devices}+0": replace(setting, mode="sync", topology=alone),
        f"off, {more}+0": replace(whole, mode="off", topology=alone),
        f"sync, {more}+0": replace(whole, mode="sync", topology=alone),
        f"async, {devices}+{system.num_processes}": replace(setting, mode="async"),
        f"auto, {devices}+{system.num_processes}": setting,
    }


def at_loads(system: System, sizes: Sequence[int], tokens_each: int) -> list[Load]:
    """Every arm at every number of requests."""
    found: list[Load] = []
    for size in sizes:
        arms = arms_of(system, setting_of(system, size))
        made = {arm: made_of(each, tokens_each) for arm, each in arms.items()}
        off = next(iter(made.values()))
        found += [as_load(system.name, arms[arm], arm, each, off) for arm, each in made.items()]
    return found


def made_of(setting: Setting, tokens_each: int) -> Outcome:
    """What a service does; one that chooses by what it measures is given time to."""
    if setting.mode in ("off", "sync"):
        return simulate(setting, tokens_each=tokens_each)
    return simulate(setting, tokens_each=_LONGER * tokens_each, warm_up=_LEARNING)


def with_host(system: System, sizes: Sequence[int], tokens_each: int) -> list[Load]:
    """The same services with what the host of a round takes in ours, as it was measured."""
    found: list[Load] = []
    for size in sizes:
        setting = replace(setting_of(system, size), row_rest_s=HOST_ROW_S)
        arms = {
            arm: each
            for arm, each in arms_of(system, setting).items()
            if f"{system.num_devices}+" in arm
        }
        made = {arm: made_of(each, tokens_each) for arm, each in arms.items()}
        off = next(iter(made.values()))
        found += [as_load(system.name, arms[arm], arm, each, off) for arm, each in made.items()]
    return found


def for_one_request(family: Family, sync_tokens_per_s: float, tokens: int) -> float:
    """Tokens a second of our service, asynchronous, 4+1, on texts as in SSD's table."""
    system = System(family, 4, 1)
    base = setting_of(system, 1)
    accept = engine_of(family, sync_tokens_per_s).accept
    setting = replace(base, texts=replace(base.texts, accept=(accept,)), mode="async")
    return made_of(setting, tokens).tokens_per_s


def sharing(
    system: System, num_targets: Sequence[int], sizes: Sequence[int], tokens_each: int
) -> list[Load]:
    """Targets with so many requests each that all report to the same draft process."""
    found: list[Load] = []
    for size in sizes:
        base = replace(setting_of(system, size), mode="async", miss_policy="skip")
        off = simulate(replace(base, mode="off"), tokens_each=tokens_each)
        for count in num_targets:
            shared = replace(base, topology=Topology(count, 1))
            made = simulate(shared, tokens_each=tokens_each)
            found.append(as_load(system.name, shared, "async skip", made, off))
    return found
