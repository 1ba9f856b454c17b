# pyright: strict
"""Which of the processes that end is to blame: one fault ends several, and they end in any order.

Who ends because of another says so; then the other one is looked for, here or on another machine.
Decides nothing but whom to name.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specserve.processes.child import Child
from specserve.processes.supervised_events import (
    EXIT_FAILED,
    EXIT_REFUSED,
    Died,
    Ending,
    Event,
    HostEnded,
    StopRequested,
)

Lost = Child | HostEnded


class Cause(NamedTuple):
    """What came first."""

    detail: str
    is_here: bool = True  # otherwise on another machine, which `detail` names


def first_cause(
    lost: Lost,
    children: Callable[[], Sequence[Child]],
    next_event: Callable[[float], Event | None],
    *,
    grace_s: float,
    is_draining: bool,
) -> Cause:
    """Why a service ends, where `lost` may have died of what another process did first.

    `next_event` waits until a time of CLOCK_MONOTONIC at most. A cause on another machine is named
    with it.
    """
    deadline = time.monotonic() + grace_s
    while lost.is_consequence:
        # Who says that it fails may take its time to end, or have said so long before.
        if (failed := _who_fails(children())) is not None:
            return Cause(failed.describe_end())
        targets = [child for child in children() if child.command.role == "target"]
        stopped = [child.command.name for child in targets if child.is_stopped]
        if stopped:
            return Cause(f"{', '.join(stopped)} stopped by a signal: {lost.describe_end()}")
        if time.monotonic() >= deadline:  # after a last look: a stop takes effect in its time
            break
        event = next_event(deadline)
        if isinstance(event, StopRequested):
            break
        if isinstance(event, HostEnded) and event.is_needed and not event.is_consequence:
            lost = event
        if isinstance(event, Died) and _may_be_cause(event.child, is_draining=is_draining):
            lost = event.child
    return Cause(lost.describe_end(), isinstance(lost, Child))


def how_not_started(lost: Lost) -> Ending:
    """How a launch ends of which `lost` cannot be part."""
    if isinstance(lost, HostEnded):
        exit_code = EXIT_REFUSED if lost.is_refusal else EXIT_FAILED
        return Ending(exit_code, lost.detail, lost.code)
    farewell, was_ready = lost.farewell, lost.report is not None and lost.report.ready
    if farewell is None:
        problem = f"{lost.describe_death()} while starting"
        return Ending(EXIT_FAILED, problem, "UNAVAILABLE")
    return Ending(EXIT_FAILED if was_ready else EXIT_REFUSED, farewell.error, farewell.code)


def _may_be_cause(dead: Child, *, is_draining: bool) -> bool:
    """Nobody depends on draft processes, and who was told to stop may end well."""
    is_draft = dead.command.role == "draft"
    ended_well = is_draining and dead.ended_well
    return not (is_draft or dead.is_consequence or ended_well)


def _who_fails(children: Sequence[Child]) -> Child | None:
    """One that gives up for a reason of its own, by its own word; draft processes may."""
    told = [c for c in children if c.command.role != "draft" and c.farewell]
    return next((child for child in told if not child.is_consequence), None)
