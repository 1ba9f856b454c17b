# pyright: strict
"""results.json of `bench.flag_grid`: every service's speed, and no flags over the best of the rest.

The best is picked in one pass and compared in the others, so that luck in the pick does not become
a loss. What fresh services made was measured once, and has no such second look: there the best is
the luckiest, which is against the service without flags.
"""

from collections.abc import Sequence

import msgspec

from bench.bootstrap import Interval, Rate, interval, mean_ratio
from bench.flag_grid.cells import NO_FLAGS
from bench.flag_grid.measure import Load, Measured, Plan
from bench.machine import Machine

GOAL, FIRST_GOAL = 0.97, 0.95


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of one service under one load."""

    cell: str
    load: Load
    is_first: bool
    tokens_per_s: Interval


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """No flags over the best of all others."""

    load: Load
    is_first: bool
    over_best: Interval
    best: list[str]  # of each pass that was picked in


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in results.json."""

    against: list[Against]
    speeds: list[Speed]
    measured: list[Measured]
    flags: dict[str, str]
    plan: Plan
    target: str
    ballast: str
    drafter: str
    prompts: str
    machine: Machine
    command: str
    is_complete: bool
    elapsed_s: float


def speeds_of(found: Sequence[Measured]) -> list[Speed]:
    """Of all passes together."""
    speeds: list[Speed] = []
    for load, is_first in _situations(found):
        own = [m for m in found if (m.load, m.is_first) == (load, is_first)]
        for cell in dict.fromkeys(m.cell for m in own):
            rate = _rate([m for m in own if m.cell == cell])
            speed = interval(rate)
            speeds.append(Speed(cell=cell, load=load, is_first=is_first, tokens_per_s=speed))
    return speeds


def against_best(found: Sequence[Measured]) -> list[Against]:
    """Of every load with more than one pass, and of fresh services."""
    return [
        each
        for load, is_first in _situations(found)
        if (each := _against(found, load, is_first=is_first)) is not None
    ]


def _against(found: Sequence[Measured], load: Load, *, is_first: bool) -> Against | None:
    own = [m for m in found if (m.load, m.is_first) == (load, is_first)]
    numbers = sorted({m.number for m in own})
    if len(numbers) == 1 and not is_first:
        return None
    pairs: list[tuple[Rate, Rate]] = []
    best: list[str] = []
    for number in numbers:
        picked_in = [m for m in own if m.number == number]
        others = [m for m in own if m.number != number] or picked_in
        names = dict.fromkeys(m.cell for m in picked_in if m.cell != NO_FLAGS)
        speeds = {name: _rate([m for m in picked_in if m.cell == name]).value for name in names}
        if not speeds:
            return None
        best.append(max(speeds, key=lambda name: speeds[name]))
        ours, theirs = ([m for m in others if m.cell == c] for c in (NO_FLAGS, best[-1]))
        if not ours or not theirs:
            return None  # a pass was cut short
        pairs.append((_rate(ours), _rate(theirs)))
    over = mean_ratio(pairs)
    return Against(load=load, is_first=is_first, over_best=over, best=best)


def _rate(measured: Sequence[Measured]) -> Rate:
    pairs = [
        (float(tokens), seconds)
        for m in measured
        for tokens, seconds in zip(m.tokens, m.seconds, strict=True)
    ]
    return Rate.of(pairs)


def _situations(found: Sequence[Measured]) -> list[tuple[Load, bool]]:
    """Loads, and who answers them."""
    return list(dict.fromkeys((m.load, m.is_first) for m in found))
