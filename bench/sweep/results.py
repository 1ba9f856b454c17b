# pyright: strict
"""results.json of `bench.sweep`: the figures of every arm under every load, and the summary."""

from collections.abc import Sequence

import msgspec

from bench.bootstrap import Interval
from bench.machine import Machine
from bench.services.service import OFF
from bench.sweep import figures
from bench.sweep.arms import NamedArm
from bench.sweep.figures import Percentiles
from bench.sweep.kept import Kept, Measured
from bench.sweep.plan import Load, Plan, Targets
from bench.sweep.records import Cell
from bench.sweep.summary import Summary, common, summarise


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm under one load at one temperature. None: nothing to measure it by."""

    load: Load
    temperature: float
    arm: str
    mode: str
    policy: str
    topology: str
    cores: int
    tokens_per_s: Interval | None
    tokens_per_s_per_user: Interval | None
    over_off: Interval | None  # plain decoding on the hardware that modes are compared on
    over_equal: Interval | None  # of what has draft processes: the best with as many cores and none
    equal: str | None  # its name
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    goodput: Interval | None  # requests a second within the latency target
    in_time: Interval | None  # their share
    accept_len: Interval | None
    verified: Interval | None  # drafted tokens, a row and round
    hit_rate: Interval | None
    mode_shares: dict[str, float]
    round_ms: dict[str, float | None]  # by the service's own counters: forward, draft, wait, wave
    num_answers: int
    num_repeats: int
    foreign_share: float  # the most of a core that others used


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in results.json."""

    summary: Summary
    rows: list[Row]
    flags: dict[str, str]  # of every arm
    shortened: list[str]  # comparisons with fewer requests than planned, for want of time
    num_broken: int  # comparisons that a stop lies within
    measured: Measured
    targets: Targets
    prompts: str  # what was asked, in words
    machines: list[Machine]  # one for each run of the command
    command: str
    is_complete: bool
    elapsed_s: float


class Rows:
    """Of the turns so far; what has no new turn is not worked out again."""

    def __init__(self, arms: Sequence[NamedArm], targets: Targets) -> None:
        self._arms = arms
        self._targets = targets
        self._known: dict[tuple[float, Load], tuple[int, list[Row]]] = {}

    def of(self, cells: Sequence[Cell]) -> list[Row]:
        """By temperature and load, in the order in which they were measured."""
        by_place: dict[tuple[float, Load], list[Cell]] = {}
        for cell in cells:
            by_place.setdefault(cell.place[:2], []).append(cell)
        for place, own in by_place.items():
            if self._known.get(place, (0, []))[0] != len(own):
                self._known[place] = len(own), self._rows(own)
        return [row for place in by_place for row in self._known[place][1]]

    def _rows(self, cells: Sequence[Cell]) -> list[Row]:
        names = {cell.arm for cell in cells}
        arms = [arm for arm in self._arms if arm.name in names]
        return [self._row(arm, cells, arms) for arm in arms]

    def _row(self, arm: NamedArm, cells: Sequence[Cell], arms: Sequence[NamedArm]) -> Row:
        own = [cell for cell in cells if cell.arm == arm.name]
        off = next((a for a in arms if a.is_main and a.arm.mode == OFF), None)
        equal = _fastest([a.name for a in arms if a.is_equal_hardware(arm)], cells)
        return Row(
            load=own[0].load,
            temperature=own[0].temperature,
            arm=arm.name,
            mode=arm.arm.mode,
            policy=arm.arm.policy,
            topology=arm.arm.topology,
            cores=arm.arm.cores,
            tokens_per_s=figures.spread(own, figures.tokens_per_s),
            tokens_per_s_per_user=figures.spread(own, figures.tokens_per_s_per_user),
            over_off=None if off is None else _over(arm.name, off.name, cells),
            over_equal=None if equal is None else _over(arm.name, equal, cells),
            equal=equal,
            ttft_ms=figures.ttft_ms(own),
            tpot_ms=figures.tpot_ms(own),
            goodput=figures.spread(own, figures.goodput(self._targets)),
            in_time=figures.spread(own, figures.in_time(self._targets)),
            accept_len=figures.spread(own, figures.accept_len),
            verified=figures.spread(own, figures.verified),
            hit_rate=figures.spread(own, figures.hits),
            mode_shares=figures.mode_shares(own),
            round_ms={
                name: figures.ms_per_round(own, f"{name}_s")
                for name in ("forward", "draft", "wait", "wave")
            },
            num_answers=sum(len(cell.answers) for cell in own),
            num_repeats=len(own),
            foreign_share=max(cell.foreign_share for cell in own),
        )


def _over(name: str, other: str, cells: Sequence[Cell]) -> Interval | None:
    """Of the repeats that both had; nothing is faster than itself."""
    compared = common(cells, [name, other]) if name != other else None
    return compared and figures.compare(compared.rates[name], compared.rates[other])


def _fastest(names: Sequence[str], cells: Sequence[Cell]) -> str | None:
    """On all that there is: luck in the pick is against what it is held against."""

    def speed(name: str) -> float:
        found = figures.rate([cell for cell in cells if cell.arm == name], figures.tokens_per_s)
        return found.value if found.under.sum() > 0 else 0.0

    return max(names, key=speed, default=None)


def shortened(cells: Sequence[Cell], plan: Plan) -> list[str]:
    """Each comparison once."""
    found: dict[str, None] = {}
    for cell in cells:
        asked, planned = len(cell.answers), plan.requests_of(cell.load)
        if asked < planned:
            place = f"{cell.load}, T {cell.temperature:g}, repeat {cell.repeat + 1}"
            found[f"{place}: {asked} of {planned} requests"] = None
    return list(found)


def num_broken(cells: Sequence[Cell]) -> int:
    """Comparisons of which a later run of the command measured the rest."""
    sessions: dict[tuple[float, Load, int], set[int]] = {}
    for cell in cells:
        sessions.setdefault(cell.place, set()).add(cell.session)
    return sum(len(each) > 1 for each in sessions.values())


class Collector:
    """Turns what is kept into results."""

    def __init__(
        self,
        measured: Measured,
        targets: Targets,
        arms: Sequence[NamedArm],
        *,
        prompts: str,
        command: str,
    ) -> None:
        """`prompts`: what was asked, in words."""
        self._measured, self._targets, self._arms = measured, targets, arms
        self._prompts, self._command = prompts, command
        self._rows = Rows(arms, targets)

    def results(self, kept: Kept, *, is_complete: bool) -> Results:
        """Of what there is so far."""
        return Results(
            summary=summarise(kept.cells, self._arms),
            rows=self._rows.of(kept.cells),
            flags={arm.name: " ".join(arm.arm.flags) for arm in self._arms},
            shortened=shortened(kept.cells, self._measured.plan),
            num_broken=num_broken(kept.cells),
            measured=self._measured,
            targets=self._targets,
            prompts=self._prompts,
            machines=[session.machine for session in kept.sessions],
            command=self._command,
            is_complete=is_complete,
            elapsed_s=kept.elapsed_s,
        )
