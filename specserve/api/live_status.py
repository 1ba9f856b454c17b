# pyright: strict
"""What a service does at this moment, for the page that shows it: state, load, figures, processes.

Keeps nothing of its own: the target's latest reports are the hub's, what is known of the processes
besides is in the run folder, and the figures are those of `specserve top`.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from specserve import __version__
from specserve.api.figures import Figures, figures_of
from specserve.api.service import Service
from specserve.processes.roster import ChildState, read_roster
from specserve.settings.config import Placement
from specserve.types import Load, Ready

_LATE_S = 1.0  # a report of the target that is older: it is held up
_NAMES = {"api": "API process", "target": "target rank {}", "draft": "draft process {}"}


class PositionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Confidences of one position of drafted blocks beside what became of its tokens."""

    num_judged: int  # tokens since the start that had a confidence and were reached
    mean_confidence: float
    mean_acceptance: float
    error: float  # expected calibration error, 0 to 1


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the service."""

    name: str
    role: str  # api, target or draft
    pid: int | None  # None: there is none now, or nobody has said
    state: str
    is_well: bool
    detail: str  # what happened to it last; empty: nothing to tell


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of `GET /status`. What the target alone knows is empty or 0 until it has loaded."""

    version: str
    state: str
    reason: str  # why it is not "ready"; empty where it is
    uptime_s: float
    topology: str
    model: str
    has_chat_template: bool
    max_model_len: int
    speculation: str  # as configured
    drafter: str
    gamma: int
    mode: str  # of the latest round: off, sync or async
    report_age_s: float  # of the target's latest report, which all that follows is from
    num_in_flight: int  # requests
    num_running: int  # samples
    num_waiting: int
    num_generated_tokens: int
    kv_cache_usage: float  # share of its blocks
    round_s: float  # of a round without prompts, a moving average
    step_time_error: float | None  # median of |predicted / measured - 1|
    figures: Figures | None  # of the last two seconds; None: too early to say
    calibration: list[PositionStatus]  # by position
    processes: list[ProcessStatus]


def live_status(service: Service) -> LiveStatus:
    """Now. Answers while the service loads, drains and fails, too."""
    hub, load = service.hub, service.hub.load
    ready = service.ready if hub.ready.done() and not hub.lost.is_set() else None
    processes = _processes(service, load)
    return LiveStatus(
        version=__version__,
        state=service.state,
        reason=_reason(service, processes),
        uptime_s=time.monotonic() - service.started_s,
        topology=service.config.topology.topology,
        has_chat_template=service.tokenizer.has_chat_template,
        mode=load.speculation_regime,
        report_age_s=time.monotonic() - hub.load_s,
        num_in_flight=hub.num_in_flight,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_generated_tokens=load.num_generated_tokens,
        kv_cache_usage=(load.num_blocks - load.num_free_blocks) / max(1, load.num_blocks),
        round_s=load.round_s,
        step_time_error=load.step_time_error,
        figures=figures_of(hub.recent),
        calibration=_calibration(load),
        processes=processes,
        **_of_model(ready),
    )


def _of_model(ready: Ready | None) -> dict[str, Any]:
    unknown = {"model": "", "speculation": "", "drafter": "", "gamma": 0, "max_model_len": 0}
    return {name: getattr(ready, name, value) for name, value in unknown.items()}


def _calibration(load: Load) -> list[PositionStatus]:
    return [
        PositionStatus(
            num_judged=each.num_judged,
            mean_confidence=each.confidence / max(1, each.num_judged),
            mean_acceptance=each.num_accepted / max(1, each.num_judged),
            error=each.error,
        )
        for each in load.calibration
    ]


def _reason(service: Service, processes: Sequence[ProcessStatus]) -> str:
    state = service.state
    if state == "target lost":
        return service.hub.lost_detail
    if state == "draining":
        if not service.hub.draining.is_set():
            return "new requests are still taken, for server.drain_notice_s, and then refused"
        return "new requests are refused; those that run are finished"
    if state == "loading":
        return "the target is not ready yet"
    return "; ".join(
        " ".join(filter(None, (each.name, each.detail or f"is {each.state}")))
        for each in processes
        if not each.is_well
    )


# --- processes -------------------------------------------------------------------------------


def _processes(service: Service, load: Load) -> list[ProcessStatus]:
    """All of the launch: the API process, target ranks, draft processes."""
    told = {(each.role, each.rank): each for each in read_roster(service.control_dir)}
    found = [
        _process(service, load, place, told.get((place.role, place.rank)))
        for place in service.config.placements
    ]
    return sorted(found, key=lambda each: list(_NAMES).index(each.role))


def _process(
    service: Service, load: Load, place: Placement, told: ChildState | None
) -> ProcessStatus:
    """`told`: by the supervisor, which this process may be without."""
    if place.role == "api":
        state, is_well = service.state, True
    elif told is not None and told.state != "ready":
        state, is_well = told.state, False
    elif place.role == "target":
        state, is_well = _target_state(service, load)
    else:
        found = load.drafts[place.rank : place.rank + 1]  # empty before the target's first report
        state, is_well = (found[0].state, found[0].is_attached) if found else ("away", False)
    return ProcessStatus(
        name=_NAMES[place.role].format(place.rank) + (f", node {place.host}" if place.host else ""),
        role=place.role,
        pid=os.getpid() if place.role == "api" else (told and told.pid) or None,
        state=state,
        is_well=is_well,
        detail=told.detail if told else "",
    )


def _target_state(service: Service, load: Load) -> tuple[str, bool]:
    """Of every rank: if one ends, all do. And whether it is well."""
    hub = service.hub
    if hub.lost.is_set():
        return "lost", False
    if not hub.ready.done():
        return "loading", False
    age_s = time.monotonic() - hub.load_s
    if age_s > _LATE_S:
        return f"silent for {age_s:.0f} s", False
    return ("busy" if load.num_running else "idle"), True
