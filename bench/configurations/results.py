# pyright: strict
"""results.json of `bench.configurations`: every arm's figures, and how asynchronous ones compare.

Where the best of several synchronous arms is wanted beside one asynchronous arm, it is the fastest
on the very requests: luck in the pick is against the asynchronous arm. The summary has the fastest
asynchronous arm of the table. Picking on one half of the requests and comparing on the other would
pick the wrong arm too often: there are few requests.
"""

from collections.abc import Callable, Sequence

import msgspec

from bench.bootstrap import Interval
from bench.configurations.arms import Plan
from bench.configurations.rows import Found, Group, Row, Setting, quiet, rows_of
from bench.conversations import Questions
from bench.goals import Goal, Summary, entries
from bench.loops import LoopCount
from bench.machine import Machine
from bench.services import rates
from bench.services.service import ASYNC, SYNC, Arm, Service

GOALS = (
    Goal(key="async_over_best_sync_t0", least=1.5, text="async over the best sync, T 0"),
    Goal(key="async_over_best_sync_t1", least=1.35, text="the same, T 1, better method"),
)


class ArmRow(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's figures, and for an asynchronous one what it is held against."""

    row: Row
    flags: str
    over_best_sync: Interval | None  # of those on one core
    best_sync: str | None
    over_equal_cores: Interval | None  # sync with as many cores as target and draft have together
    equal_cores: str | None
    mean_answer_len: float  # tokens


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in results.json. None in `summary` was not measured."""

    summary: Summary
    arms: list[ArmRow]
    loops: LoopCount | None  # of plain decoding at temperature 0
    questions: Questions
    plan: Plan
    target: str
    num_params: int  # with ballast
    ballast: str
    is_pinned: bool
    num_cores: int
    machine: Machine
    command: str
    is_complete: bool
    elapsed_s: float


def arm_rows(found: Found) -> list[ArmRow]:
    """Every arm under every sampling, plain decoding first."""
    return [
        _arm_row(setting, groups, arm, row)
        for setting, groups in found.items()
        if groups
        for arm, row in zip(_in_order(groups), rows_of(setting, groups), strict=True)
    ]


def _in_order(groups: Sequence[Group]) -> list[Arm]:
    """As `rows_of` has them."""
    return sorted(groups[0].traces, key=lambda arm: not arm.is_plain)


def _arm_row(setting: Setting, groups: Sequence[Group], arm: Arm, row: Row) -> ArmRow:
    counted = quiet(groups)
    arms = list(groups[0].traces)
    best, equal = _best_of(arms, counted, num_cores=1), None
    if arm.service.mode == ASYNC:
        equal = _best_of(arms, counted, num_cores=_num_cores(arm.service))
    else:
        best = None
    lengths = [len(text) for group in groups for text in group.traces[arm].texts]
    return ArmRow(
        row=row,
        flags=" ".join(arm.service.flags),
        over_best_sync=None if best is None else ratio_of(counted, arm, best),
        best_sync=None if best is None else _named(best, setting),
        over_equal_cores=None if equal is None else ratio_of(counted, arm, equal),
        equal_cores=None if equal is None else _named(equal, setting),
        mean_answer_len=sum(lengths) / len(lengths),
    )


def _num_cores(service: Service) -> int:
    """Of the target and its draft processes, one core each."""
    return service.threads + service.num_drafts


def _best_of(arms: Sequence[Arm], counted: Sequence[Group], *, num_cores: int) -> Arm | None:
    """The fastest synchronous arm on so many cores."""
    found = [arm for arm in arms if _is_sync(arm) and arm.service.threads == num_cores]
    return best_arm(counted, found) if found else None


def _is_sync(arm: Arm) -> bool:
    return arm.service.mode == SYNC


def _named(arm: Arm, setting: Setting) -> str:
    return arm.service.name + (f" ({arm.method})" if setting.temperature > 0 else "")


def summarise(found: Found) -> Summary:
    """By temperature: the best asynchronous arm over the best synchronous ones, and all speeds."""
    summary: Summary = {}
    for setting, groups in found.items():
        if not groups:
            continue
        own, sampling = quiet(groups), f"t{setting.temperature:g}"
        figures = {
            f"async_over_best_sync_{sampling}": _best_over_sync(own, lambda threads: threads == 1),
            f"async_over_equal_cores_{sampling}": _best_over_sync(own, lambda threads: threads > 1),
        }
        for arm in groups[0].traces:
            method = f"{arm.method} " if setting.temperature else ""
            name = f"{arm.service.name} {method}{sampling}"
            traces = [group.traces[arm] for group in own]
            figures[f"tok/s {name}"] = rates.spread(traces, rates.tokens_per_s)
        for key, figure in figures.items():
            summary |= entries(key, figure)
    return summary


def _best_over_sync(groups: Sequence[Group], has_threads: Callable[[int], bool]) -> Interval | None:
    """The fastest asynchronous arm over the fastest synchronous one with so many threads."""
    arms = list(groups[0].traces)
    overs = [arm for arm in arms if _is_async(arm)]
    unders = [arm for arm in arms if _is_sync(arm) and has_threads(arm.service.threads)]
    if not overs or not unders:
        return None
    return ratio_of(groups, best_arm(groups, overs), best_arm(groups, unders))


def best_arm(groups: Sequence[Group], arms: Sequence[Arm]) -> Arm:
    """The fastest of them; the first of those that decoded nothing side by side."""

    def speed(arm: Arm) -> float:
        return rates.value([group.traces[arm] for group in groups], rates.tokens_per_s) or 0.0

    return max(arms, key=speed)


def ratio_of(groups: Sequence[Group], over: Arm, under: Arm) -> Interval | None:
    """Of their tokens a second, drawing the same groups for both."""
    overs, unders = ([group.traces[arm] for group in groups] for arm in (over, under))
    return rates.spread_ratio(overs, unders, rates.tokens_per_s)


def _is_async(arm: Arm) -> bool:
    return arm.service.mode == ASYNC
