# pyright: strict
"""The figures that goals are set for, of closed loops: `auto` over single modes and fixed lengths.

Where the best of several arms is wanted, it is picked on the other repeats than it is compared on
(with one repeat: on every other request), so that luck in the pick does not become gain. Modes are
compared on the hardware of the first topology with a draft process and under the first policy.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.bootstrap import Floats, Interval, Rate, combined
from bench.goals import Goal, entries
from bench.services.service import ASYNC, AUTO, OFF, SYNC
from bench.sweep.arms import NamedArm
from bench.sweep.figures import compare, rate, tokens_per_s, verified
from bench.sweep.plan import FIXED
from bench.sweep.records import Cell

Summary = dict[str, float | list[tuple[int, float]] | None]
_PRECISION = 4

GOALS = (
    Goal(key="auto_over_best_min", least=1.0, text="auto over the best mode, worst batch size"),
    Goal(key="auto_over_fixed_at_largest", least=1.15, text="auto over fixed length, largest"),
    Goal(
        key="gain_kept_at_largest_paying",
        least=0.5,
        text="share of the best mode's gain that auto has, largest batch where speculation pays",
    ),
)


def summarise(cells: Sequence[Cell], arms: Sequence[NamedArm]) -> Summary:
    """Of every temperature, by its name; the highest one's figures also without."""
    temperatures = sorted({cell.temperature for cell in cells})
    summary: Summary = {**_of_one([], arms)}
    for temperature in temperatures:
        own = _of_one([cell for cell in cells if cell.temperature == temperature], arms)
        summary |= own if temperature == temperatures[-1] else {}
        summary |= {f"{key}_t{temperature:g}": figure for key, figure in own.items()}
    return summary


def _of_one(cells: Sequence[Cell], arms: Sequence[NamedArm]) -> Summary:
    sizes = sorted({cell.load.in_flight for cell in cells if cell.load.is_closed})
    at = {size: _At([c for c in cells if c.load.in_flight == size], arms) for size in sizes}
    by_size = {size: found for size in sizes if (found := at[size].auto_over_best()) is not None}
    worst = min(by_size.values(), key=lambda figure: figure.value, default=None)
    largest = at[sizes[-1]] if sizes else None
    figures: dict[str, Interval | None] = {
        "auto_over_best_min": worst,
        "auto_over_fixed_at_largest": largest and largest.auto_over_fixed(),
        "gain_kept_at_largest_paying": _gain_kept([at[size] for size in reversed(sizes)]),
    }
    figures |= {f"auto_over_best_b{size}": figure for size, figure in by_size.items()}
    figures |= {
        f"{mode}_over_off_b{size}": found
        for size in sizes
        for mode in (SYNC, ASYNC, AUTO)
        if (found := at[size].over_off(mode)) is not None
    }
    budgets = [(size, each) for size in sizes if (each := at[size].budget()) is not None]
    summary: Summary = {"budget_by_load": budgets or None}
    for key, figure in figures.items():
        summary |= entries(key, figure)
    return summary


def _gain_kept(largest_first: Sequence["_At"]) -> Interval | None:
    """None where speculation pays nowhere beyond doubt."""
    paying = next((each for each in largest_first if each.pays()), None)
    return paying and paying.gain_kept()


class Compared(NamedTuple):
    """The same answers of several arms."""

    rates: Mapping[str, Rate]  # by arm
    folds: Sequence[Hashable]  # of each answer: what is picked on others than it is compared on


def common(cells: Sequence[Cell], names: Sequence[str]) -> Compared | None:
    """Of the repeats in which each of these arms had its turn; None where there is none."""
    by_arm = {name: {c.repeat: c for c in cells if c.arm == name} for name in names}
    known = [found.keys() for found in by_arm.values()]
    repeats = [repeat for repeat in sorted(known[0]) if all(repeat in each for each in known)]
    if not repeats:
        return None
    chosen = {name: [found[repeat] for repeat in repeats] for name, found in by_arm.items()}
    folds = [
        cell.repeat if len(repeats) > 1 else place % 2
        for cell in next(iter(chosen.values()))
        for place, _ in enumerate(cell.answers)
    ]
    return Compared({name: rate(found, tokens_per_s) for name, found in chosen.items()}, folds)


def best_elsewhere(compared: Compared, names: Sequence[str]) -> Rate:
    """Of each fold, the arm that is fastest on all others; one fold alone picks for itself."""
    folds = np.array([list(dict.fromkeys(compared.folds)).index(fold) for fold in compared.folds])
    first = compared.rates[names[0]]
    over, under = np.zeros(first.num_prompts), np.zeros(first.num_prompts)
    for fold in range(folds.max() + 1):
        own = folds == fold
        others = ~own if (~own).any() else own
        best = compared.rates[max(names, key=lambda name: _speed(compared.rates[name], others))]
        over[own], under[own] = best.over[own], best.under[own]
    return Rate(over, under, first.clusters)


def _speed(found: Rate, where: NDArray[np.bool_]) -> float:
    seconds = float(found.under[where].sum())
    return float(found.over[where].sum()) / seconds if seconds else 0.0


class _At:
    """All turns of one temperature and one number of requests in flight."""

    def __init__(self, cells: Sequence[Cell], arms: Sequence[NamedArm]) -> None:
        self._cells = cells
        names = {cell.arm for cell in cells}
        self._arms = [arm for arm in arms if arm.name in names]

    def auto_over_best(self) -> Interval | None:
        return self._auto_over(self._main(OFF, SYNC, ASYNC))

    def auto_over_fixed(self) -> Interval | None:
        """What speculates and verifies everything that was drafted, always."""
        found = [arm for arm in self._arms if arm.on_main and arm.arm.mode in (SYNC, ASYNC)]
        return self._auto_over([arm.name for arm in found if arm.arm.policy == FIXED])

    def pays(self) -> bool:
        """Whether all of the interval of the best speculating mode is faster than plainly."""
        found = self._with_off()
        if found is None:
            return False
        off, best, _ = found
        over = compare(best, off)
        return over is not None and over.low > 1

    def gain_kept(self) -> Interval | None:
        off, best, auto = self._with_off() or (None, None, None)
        if off is None or best is None or auto is None:
            return None
        return combined([auto, off, best], _share_of_gain)

    def over_off(self, mode: str) -> Interval | None:
        names = [*self._main(mode), *self._main(OFF)]
        compared = common(self._cells, names) if len(names) == 2 else None
        return compared and compare(*(compared.rates[name] for name in names))

    def budget(self) -> float | None:
        """Drafted tokens that `auto` verified in a row and round."""
        names = self._main(AUTO)
        found = rate([cell for cell in self._cells if cell.arm in names], verified)
        return round(found.value, _PRECISION) if found.under.sum() > 0 else None

    def _main(self, *modes: str) -> list[str]:
        return [arm.name for arm in self._arms if arm.is_main and arm.arm.mode in modes]

    def _auto_over(self, names: Sequence[str]) -> Interval | None:
        autos = self._main(AUTO)
        compared = common(self._cells, [*autos, *names]) if autos and names else None
        return compared and compare(compared.rates[autos[0]], best_elsewhere(compared, names))

    def _with_off(self) -> tuple[Rate, Rate, Rate | None] | None:
        """Plain decoding, the best speculating mode, and `auto` if there is one."""
        off, autos, speculating = self._main(OFF), self._main(AUTO), self._main(SYNC, ASYNC)
        names = [*off, *speculating, *autos]
        compared = common(self._cells, names) if off and speculating else None
        if compared is None:
            return None
        best = best_elsewhere(compared, speculating)
        return compared.rates[off[0]], best, compared.rates[autos[0]] if autos else None


def _share_of_gain(auto: Floats, off: Floats, best: Floats) -> Floats:
    return (auto / off - 1) / (best / off - 1)
