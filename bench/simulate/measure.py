# pyright: strict
"""Runs all of it, in the order in which it is reported: what is known, then what is predicted."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from bench.machine import describe_machine
from bench.simulate import loads, own, own_sweep, own_sync, placement, predictions, published
from bench.simulate import vectors as known_vectors
from bench.simulate.results import (
    CLOSE_TO_OURS,
    CLOSE_TO_PAPER,
    Load,
    Measured,
    Placed,
    Published,
    Results,
)


class Size(NamedTuple):
    """How much is simulated."""

    rounds: int  # of SSD's engine
    tokens: int  # of every simulated service, ...
    least_each: int  # ... and of each of its requests
    load_sizes: tuple[int, ...]  # requests at once, of budgets and beliefs
    predicted_sizes: tuple[int, ...]
    systems: int  # how many of those that are predicted
    placed_tokens: int
    shares: tuple[float, ...]
    scalings: tuple[float, ...]

    @property
    def num_steps(self) -> int:
        """Of progress."""
        return 7 + self.systems

    def tokens_each(self, num_at_once: int) -> int:
        return max(self.least_each, self.tokens // num_at_once)


QUICK = Size(
    1000, 600, 24, (1, 16, 64, 256), (1, 16, 128), 1, 400,
    placement.SHARES[::2], placement.SCALINGS[::2],
)  # fmt: skip
WHOLE = Size(
    5000, 3000, 120, (1, 8, 32, 64, 128, 256, 512), (1, 4, 16, 64, 128, 256, 512), 3, 2000,
    placement.SHARES, placement.SCALINGS,
)  # fmt: skip
_HOSTED_SIZES = 4  # of those that are predicted: the smaller ones
_SHARED_TARGETS, _SHARED_SIZES = (1, 2, 4, 8), (1, 8)

Advance = Callable[[str], None]


def measure(size: Size, command: str, advance: Advance) -> Results:
    """`advance` is told what comes next, `size.num_steps` times."""
    began_s = time.perf_counter()
    advance("equations, and SSD's table")
    vectors = known_vectors.compare(size.tokens)
    table = _with_ours(published.table(size.rounds), size.tokens)
    sensitivity = published.sensitivity(size.rounds)
    advance("SSD, figure 6")
    backups = [each for f in published.FAMILIES for each in published.backups(f, size.rounds)]
    devices = [each for f in published.FAMILIES for each in published.draft_devices(f, size.rounds)]
    critical = {
        family.name: published.critical_size(family, size.rounds) for family in published.FAMILIES
    }
    advance("our own measurements")
    measured = [each for one in own.SOURCES for each in own.compare(one, size.tokens)]
    measured += own_sync.compare(size.tokens)
    measured += [each for one in own_sweep.SWEEPS for each in own_sweep.compare(one, size.tokens)]
    advance("DSpark, figure 8")
    budgets = [each for n in size.load_sizes for each in loads.budgets([n], size.tokens_each(n))]
    advance("what confidences are worth")
    beliefs = [each for n in size.load_sizes for each in loads.beliefs([n], size.tokens_each(n))]
    predicted = _predicted(size, advance)
    advance("the host as it is, and targets that share a draft process")
    hosted, shared = _hosted(size), _shared(size)
    advance("where a device serves better")
    placed = placement.compare(size.shares, size.scalings, size.placed_tokens)
    return Results(
        summary=_summary(table, measured, budgets, predicted, placed),
        vectors=vectors,
        published=table,
        sensitivity=sensitivity,
        backups=backups,
        draft_devices=devices,
        critical_sizes=critical,
        measured=measured,
        budgets=budgets,
        beliefs=beliefs,
        conclusion=loads.conclusion(beliefs),
        predicted=predicted,
        hosted=hosted,
        shared=shared,
        placed=placed,
        is_quick=size is QUICK,
        seed=0,
        machine=describe_machine(),
        command=command,
        elapsed_s=time.perf_counter() - began_s,
    )


def _predicted(size: Size, advance: Advance) -> list[Load]:
    found: list[Load] = []
    for system in predictions.SYSTEMS[: size.systems]:
        advance(system.name)
        for n in size.predicted_sizes:
            found += predictions.at_loads(system, [n], size.tokens_each(n))
    return found


def _hosted(size: Size) -> list[Load]:
    system, sizes = predictions.SYSTEMS[0], size.predicted_sizes[:_HOSTED_SIZES]
    by_size = [predictions.with_host(system, [n], size.tokens_each(n)) for n in sizes]
    return [each for found in by_size for each in found]


def _shared(size: Size) -> list[Load]:
    system = predictions.SYSTEMS[0]
    by_size = [
        predictions.sharing(system, _SHARED_TARGETS, [n], size.tokens_each(4 * n))
        for n in _SHARED_SIZES
    ]
    return [each for found in by_size for each in found]


def _with_ours(table: list[Published], tokens: int) -> list[Published]:
    """With our own service beside the paper's engine; of the averages, theirs."""
    families = {family.name: family for family in published.FAMILIES}
    found: list[Published] = []
    for row in table:
        if row.accept:
            ours = predictions.for_one_request(families[row.family], row.sync, tokens)
        else:
            own = [each.ours for each in found if each.family == row.family]
            ours = sum(own) / len(own)
        found.append(msgspec.structs.replace(row, ours=ours))
    return found


def _summary(
    table: list[Published],
    measured: list[Measured],
    budgets: list[Load],
    predicted: list[Load],
    placed: list[Placed],
) -> dict[str, float]:
    rows = [row.off_by for row in table if row.accept]
    known = [each for each in measured if each.role == "predicted" and not each.why]
    with_parts = [each for each in measured if each.role == "with its parts" and not each.why]
    causal = [each.verify_budget for each in budgets if each.arm == "causal"]
    rises = [after - before for before, after in pairwise(causal)]
    clear = [each for each in placed if abs(each.simulated - 1) > placement.MARGIN]
    agreed = [each for each in clear if (each.by_rule > 1) == (each.simulated > 1)]
    broken = [each for each in placed if each.at_best < 1 < each.simulated]
    figures = {
        "paper_rows": len(rows),
        "paper_rows_close": sum(abs(off) <= CLOSE_TO_PAPER for off in rows),
        "paper_worst": max(rows, key=abs),
        "ours_with_known_parts": len(known),
        "ours_close": sum(abs(each.off_by) <= CLOSE_TO_OURS for each in known),
        "ours_close_with_their_parts": sum(
            abs(each.off_by) <= CLOSE_TO_OURS for each in with_parts
        ),
        "budget_at_least_load": causal[0],
        "budget_at_most_load": causal[-1],
        "budget_largest_rise": max([0.0, *rises]),
        "auto_over_best_min": auto_over_best(predicted),
        "auto_over_off_min": _auto_over_off(predicted),
        "placed_clear": len(clear),
        "placed_as_the_rule_says": len(agreed),
        "placed_against_the_bound": len(broken),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def auto_over_best(predicted: list[Load]) -> float:
    """Of `auto`, by the best of the other modes on the same devices; the worst load."""
    ratios: list[float] = []
    for auto in predicted:
        if not auto.arm.startswith("auto"):
            continue
        own_devices = auto.arm.split(", ")[1].split("+")[0]
        others = [
            each.tokens_per_s
            for each in predicted
            if (each.system, each.num_at_once) == (auto.system, auto.num_at_once)
            and not each.arm.startswith("auto")
            and each.arm.split(", ")[1].split("+")[0] == own_devices
        ]
        ratios.append(auto.tokens_per_s / max(others))
    return min(ratios)


def _auto_over_off(predicted: list[Load]) -> float:
    return min(each.over_off for each in predicted if each.arm.startswith("auto"))
