# pyright: strict
"""What one GPU measured of the parts (`bench.gpu`), put together to services on several.

A target on four devices takes what one rank's share of it took, and the all-reduces of every layer,
which are stated: no machine of ours has two. A language model that drafts takes a forward a token,
a block drafter a block. Texts are those of the predictions from published figures, whoever drafts:
nothing about acceptance was measured on random weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import msgspec

from bench.gpu.records import Draft, Step, read_results
from bench.machine import Machine, describe_machine
from bench.simulate.loads import as_load
from bench.simulate.predictions import SYSTEMS, System, arms_of, made_of, setting_of
from bench.simulate.published import FAMILIES
from bench.simulate.results import Load
from bench.simulate.setting import Drafters, Setting
from bench.simulate.step_models import H100, chains
from bench.tables import Table
from specserve.drafters.draft_times import DraftTimes
from specserve.errors import InvalidField
from specserve.types import DraftTime
from target_node.planning.step_table import FrozenSteps, Slopes

FLAG = "--parts"
SIZES = (1, 4, 16, 64)


class FromParts(msgspec.Struct, kw_only=True):
    """results.json of a simulation of measured parts."""

    loads: list[Load]
    plain: dict[str, tuple[float, float]]  # tokens a second of one request: published, from parts
    paper: dict[str, float]  # asynchronous, mean of SSD's data sets
    measured: str  # where and when the parts were
    is_dry: bool  # they were not: figures mean nothing
    machine: Machine
    command: str


def predict(path: Path, sizes: Sequence[int], tokens: int, command: str) -> FromParts:
    """`tokens` are simulated of each service. Raises InvalidField where no system has its parts."""
    measured = read_results(path, FLAG)
    steps, drafts = measured.steps(), measured.drafts()
    loads: list[Load] = []
    plain: dict[str, tuple[float, float]] = {}
    for system in SYSTEMS:
        target = steps_of(system.family.target.name, system.num_devices, steps)
        if target is None:
            continue
        family = system.family
        for name, times, gamma in _drafters_of(system, steps, drafts):
            label = f"{family.target.name} / {name}, {system.num_devices}+{system.num_processes}"
            for size in sizes:
                setting = _setting(system, size, target, times, gamma)
                loads += _at_load(system, label, setting, max(24, tokens // size))
            alone = [e for e in loads if e.system == label and e.arm.startswith("off")]
            plain[label] = family.plain, alone[0].tokens_per_s
    if not loads:
        known = ", ".join(sorted({f"{each.model} on {each.devices}" for each in steps}))
        wanted = f"{SYSTEMS[0].family.target.name} on {SYSTEMS[0].num_devices}"
        problem = f"{path} has steps of {known or 'nothing'}, and none of {wanted} with its drafter"
        raise InvalidField(FLAG, f"{problem}; type python -m bench.gpu --tasks steps")
    paper = {f.name: mean(each for _, each in f.by_data_set.values()) for f in FAMILIES}
    return FromParts(
        loads=loads,
        plain=plain,
        paper=paper,
        measured=measured.machine.line,
        is_dry=measured.is_dry,
        machine=describe_machine(),
        command=command,
    )


def steps_of(model: str, devices: int, measured: Sequence[Step]) -> FrozenSteps | None:
    """The table of a target on so many devices; None where its share was not measured."""
    own = [each for each in measured if (each.model, each.devices) == (model, devices)]
    if not own:
        return None
    key_s = _key_s(own)
    reduced_s = 2 * H100.reduce_s * own[0].num_layers if devices > 1 else 0.0
    by_size: dict[int, list[float]] = {}
    for each in own:
        # A forward takes something besides its keys, whatever the slope's error.
        seconds = max(0.1 * each.seconds, each.seconds - each.rows * each.context * key_s)
        by_size.setdefault(each.rows * each.tokens, []).append(seconds + reduced_s)
    cells = sorted((size, mean(seconds)) for size, seconds in by_size.items())
    return FrozenSteps(cells, Slopes(0.0, key_s), 1.0, ())


def _key_s(own: Sequence[Step]) -> float:
    """What a key adds: the median over forwards that differ in their contexts alone."""
    by_form: dict[tuple[int, int], list[Step]] = {}
    for each in own:
        by_form.setdefault((each.rows, each.tokens), []).append(each)
    found: list[float] = []
    for alike in by_form.values():
        short = min(alike, key=lambda each: each.context)
        long = max(alike, key=lambda each: each.context)
        if long.context > short.context:
            keys = short.rows * (long.context - short.context)
            found.append((long.seconds - short.seconds) / keys)
    return max(0.0, median(found)) if found else 0.0


def _drafters_of(
    system: System, steps: Sequence[Step], drafts: Sequence[Draft]
) -> list[tuple[str, DraftTimes, int | None]]:
    """Name, times and tokens of a block (None: the setting's) of what was measured for it."""
    found: list[tuple[str, DraftTimes, int | None]] = []
    chain = [each for each in steps if (each.model, each.tokens) == (system.family.draft.name, 1)]
    if chain:
        times = chains({each.rows: (0.0, each.seconds) for each in chain})
        found.append((system.family.draft.name, times, None))
    blocks = [each for each in drafts if each.target == system.family.target.name]
    for gamma in sorted({each.gamma for each in blocks}):
        own = [DraftTime(b.blocks, b.seconds, 0.0) for b in blocks if b.gamma == gamma]
        found.append((f"DSpark of {gamma}", DraftTimes(own), gamma))
    return found


def _setting(
    system: System, size: int, steps: FrozenSteps, times: DraftTimes, gamma: int | None
) -> Setting:
    base = setting_of(system, size)
    drafters = Drafters(gamma or base.drafters.gamma, times, times, link_s=base.drafters.link_s)
    return replace(base, steps=steps, drafters=drafters)


def _at_load(system: System, label: str, setting: Setting, tokens: int) -> list[Load]:
    """All arms but those on one device more, whose share was not measured."""
    arms = {
        arm: each
        for arm, each in arms_of(system, setting).items()
        if f", {system.num_devices}+" in arm
    }
    made = {arm: made_of(each, tokens) for arm, each in arms.items()}
    off = next(iter(made.values()))
    return [as_load(label, arms[arm], arm, each, off) for arm, each in made.items()]


def heading(found: FromParts) -> list[str]:
    """Before the tables."""
    dry = "**From a dry run: no figure counts.** " if found.is_dry else ""
    return [
        "# Services from measured parts",
        f"{dry}Parts measured on {found.measured}. Stated: {H100.reduce_s * 1e6:.0f} us an "
        "all-reduce, two a layer; links of 20 us; texts as in SSD's table, whoever drafts; no "
        f"prompts, memory for every request. `{found.command}`, on {found.machine.line}.",
        verdict(found),
    ]


def verdict(found: FromParts) -> str:
    """Plain decoding beside what is published, and one request beside SSD's table."""
    lines = [
        f"{label}: one request plainly {ours:.0f} tok/s from parts, {paper:.1f} published."
        for label, (paper, ours) in found.plain.items()
    ]
    lines += [f"{name}, asynchronous, SSD: {each:.0f}." for name, each in found.paper.items()]
    return " ".join(lines)


def tables(found: FromParts) -> list[Table]:
    """One of each system: tokens a second, and over plain decoding."""
    made: list[Table] = []
    for label in found.plain:
        own = [each for each in found.loads if each.system == label]
        arms = list(dict.fromkeys(each.arm for each in own))
        sizes = list(dict.fromkeys(each.num_at_once for each in own))
        by_place = {(each.num_at_once, each.arm): each for each in own}
        rows = [(size, *(_cell(by_place[size, arm]) for arm in arms)) for size in sizes]
        title = f"{label} (predicted from measured parts)"
        made.append(Table(title, ("requests", *arms), rows))
    return made


def _cell(load: Load) -> str:
    return f"{load.tokens_per_s:.0f} ({load.over_off:.2f})"


def block(found: FromParts) -> str:
    """What stands behind the mark of a page."""
    parts = [f"Parts: {found.measured}. {verdict(found)}"]
    return "\n\n".join([*parts, *(table.markdown() for table in tables(found))])
