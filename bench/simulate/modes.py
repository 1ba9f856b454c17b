# pyright: strict
"""From a setting to the `SpeculationSource` of a simulated target.

The same as `target_node.speculation.start` makes of a configuration: the shipped sources and their
forecasts, around drafters that are simulated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from bench.simulate.asynchronous import SimulatedAsynchronous
from bench.simulate.colocated import Ends, Places, SimulatedColocated, Standing
from bench.simulate.draft_process import DraftProcess
from bench.simulate.setting import Setting
from bench.simulate.texts import Draws
from bench.simulate.virtual_time import VirtualTime
from specserve.backends.base import Backend
from specserve.errors import InvalidField
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.forecast import (
    AsynchronousRounds,
    Forecasts,
    OnMiss,
    PlainRounds,
    RoundModel,
    SynchronousRounds,
)
from target_node.planning.policies import policy_named
from target_node.planning.round_prices import RoundCosts, RoundPrices
from target_node.planning.step_table import StepTable
from target_node.sampler import Sampler
from target_node.scheduler import Scheduler
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.drafting import ColocatedDraft
from target_node.speculation.miss_policy import Miss
from target_node.speculation.source import NoSpeculation, SpeculationSource, SynchronousSpeculation

_LONGEST = 64  # tokens of a block, as `speculation.gamma` may be
_MAX_TOKENS = 65_536  # of a forward: memory is no matter here
MODES = ("off", "sync", "async", "auto")


@dataclass(frozen=True)
class SimulatedBackend:
    """What planning asks of a backend."""

    turning_point: float
    neighbour_factor: float
    num_first_calls: int = 0
    is_asynchronous: bool = False


@dataclass
class Parts:
    """Of one target."""

    setting: Setting
    clock: VirtualTime
    steps: StepTable
    draws: Draws
    standing: Standing
    processes: list[DraftProcess]
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(_LONGEST))

    @property
    def backend(self) -> Backend:
        line = self.steps.freeze().line(1)
        turning_point = 8.0 if line is None else line.turning_point
        return cast(Backend, SimulatedBackend(turning_point, self.setting.slower))

    def admission(
        self,
        drafts: DraftPace | None = None,
        *,
        may_pause: bool = False,
        are_blind: bool = True,
        is_asynchronous: bool = False,
    ) -> Admission:
        """As of a service."""
        costs = None
        if self.setting.weighs_costs:
            prices = RoundPrices(self.backend, self.steps)
            costs = RoundCosts(prices, drafts, may_pause, are_blind)
        return Admission(
            acceptance=self.acceptance.of_blocks(self.setting.drafters.gamma),
            scheduler=cast(Scheduler, Places(_MAX_TOKENS)),
            sampler=cast(Sampler, Ends()),
            budget=policy_named(self.setting.policy),
            costs=costs,
            is_asynchronous=is_asynchronous,
        )


def build_source(parts: Parts) -> tuple[SpeculationSource, SimulatedAsynchronous | None]:
    """What the setting's mode drafts with, and of that what hears from processes.

    Raises InvalidField for a mode that nobody can draft for.
    """
    setting, mode = parts.setting, parts.setting.mode
    if mode not in MODES:
        raise InvalidField("mode", f"{mode!r} is none of {', '.join(MODES)}")
    if mode == "off":
        return NoSpeculation(), None
    models: dict[str, RoundModel] = {"off": PlainRounds()}
    modes: dict[str, SpeculationSource] = {"off": NoSpeculation()} if mode == "auto" else {}
    beside = _beside(parts)
    if mode != "async" and beside is not None:
        modes["sync"], models["sync"] = _synchronous(parts, beside)
    source, misses = None, dict[str, Miss]()
    if mode != "sync" and parts.processes:
        source = _asynchronous(parts, beside)
        misses = {f"async {miss}": miss for miss in _fallbacks(setting, beside)}
        models |= _expected(parts, source, beside, misses)
        modes |= dict.fromkeys(misses, source)
    if not modes:
        raise InvalidField("mode", f"{mode} has nobody to draft for it")
    if len(modes) == 1:
        if source is not None:
            source.policy.tell(next(iter(misses.values())))
        return next(iter(modes.values())), source
    forecasts = Forecasts({name: models[name] for name in modes}, parts.steps)
    policy = None if source is None else source.policy
    ends = Ends()
    auto = AutoSpeculation(modes, ends.method, parts.backend, misses, policy, forecasts)
    return auto, source


def _beside(parts: Parts) -> SimulatedColocated | None:
    drafters, texts = parts.setting.drafters, parts.setting.texts
    if drafters.beside is None:
        return None
    blind = texts.belief == "none"
    return SimulatedColocated(
        drafters.beside, drafters.gamma, parts.standing, parts.clock, blind=blind
    )


def _synchronous(
    parts: Parts, beside: SimulatedColocated
) -> tuple[SpeculationSource, SynchronousRounds]:
    # Under `auto` the speed of whole modes decides.
    may_pause = parts.setting.mode == "sync" and parts.setting.weighs_costs
    admission = parts.admission(beside.pace, may_pause=may_pause, are_blind=beside.is_blind)
    draft = cast(ColocatedDraft, beside)
    acceptance = parts.acceptance.of_blocks(beside.gamma)
    return SynchronousSpeculation(draft, admission), SynchronousRounds(acceptance, beside.pace)


def _asynchronous(parts: Parts, beside: SimulatedColocated | None) -> SimulatedAsynchronous:
    return SimulatedAsynchronous(
        parts.processes,
        parts.setting.drafters,
        admission=parts.admission(is_asynchronous=True),
        draws=(parts.draws, parts.standing),
        clock=parts.clock,
        turning_point=parts.backend.turning_point,
        beside=beside,
    )


def _fallbacks(setting: Setting, beside: SimulatedColocated | None) -> list[Miss]:
    if setting.miss_policy != "auto":
        return [Miss(setting.miss_policy)]
    here = [] if beside is None else [Miss.LOCAL_DRAFT]
    return [*here, Miss.DRAFT_NOW, Miss.SKIP]


def _expected(
    parts: Parts,
    source: SimulatedAsynchronous,
    beside: SimulatedColocated | None,
    misses: Mapping[str, Miss],
) -> dict[str, RoundModel]:
    """What is foretold of each way to go on after a miss."""
    setting = parts.setting
    acceptance = parts.acceptance.of_blocks(setting.drafters.gamma)
    on_miss = {Miss.DRAFT_NOW: OnMiss(waits=True)}
    if beside is not None:
        on_miss[Miss.LOCAL_DRAFT] = OnMiss(SynchronousRounds(acceptance, beside.pace))
    return {
        name: AsynchronousRounds(
            acceptance,
            drafts=source.pace,
            num_processes=len(parts.processes),
            most_outcomes=setting.drafters.fan_out,
            hits=source.hits,
            on_miss=on_miss.get(miss, OnMiss()),
            slower=setting.slower,
        )
        for name, miss in misses.items()
    }
