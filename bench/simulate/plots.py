"""The plots of `bench.simulate`: backups, budgets, what confidences are worth, loads, placement."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.figures import panels
from bench.simulate.placement import KEPT
from bench.simulate.results import Load, Placed, Results
from specserve.settings.device_use import least_draft_share

Item = TypeVar("Item")


def draw(results: Results, out: Path) -> dict[str, str]:
    """Write all in `out`; file names by what they show."""
    drawn = {
        "backups": _backups(results, out / "backups.png"),
        "budgets": _budgets(results.budgets, out / "budgets.png"),
        "beliefs": _loads(results, out / "beliefs.png"),
        "predicted": _predicted(results.predicted, out / "predicted.png"),
        "placed": _placement(results.placed, out / "placement.png"),
    }
    return {name: path.name for name, path in drawn.items()}


def _backups(results: Results, path: Path) -> Path:
    """SSD, figure 6 (left)."""
    families = _grouped(results.backups, lambda each: each.family)
    with panels(path, list(families)) as axes:
        for one, found in zip(axes, families.values(), strict=True):
            sizes = [each.batch_size for each in found]
            one.plot(sizes, [each.jit for each in found], "o-", label="misses drafted, waited for")
            one.plot(sizes, [each.random for each in found], "s-", label="random tokens")
            one.plot(sizes, [each.sync for each in found], "k--", label="sync", linewidth=1)
            _by_requests(one, sizes, "tok/s by plain, predicted")
            one.set_ylim(bottom=0)
    return path


def _budgets(loads: Sequence[Load], path: Path) -> Path:
    """DSpark, figure 8, below."""
    with panels(path, [f"{loads[0].system}: predicted"]) as (one,):
        for arm, found in _grouped(loads, lambda each: each.arm).items():
            sizes = [each.num_at_once for each in found]
            one.plot(sizes, [each.verify_budget for each in found], "o-", label=arm, markersize=4)
        sizes = [each.num_at_once for each in loads]
        _by_requests(one, sizes, "verify budget, tokens a request")
        one.set_ylim(bottom=0)
    return path


def _loads(results: Results, path: Path) -> Path:
    """Speed by policy (DSpark, figure 8, above), and by what is known of tokens."""
    found = {"policies, predicted": results.budgets, "confidences, predicted": results.beliefs}
    with panels(path, list(found)) as axes:
        for one, loads in zip(axes, found.values(), strict=True):
            _speeds(one, loads)
    return path


def _predicted(loads: Sequence[Load], path: Path) -> Path:
    systems = _grouped(loads, lambda each: each.system)
    with panels(path, list(systems)) as axes:
        for one, found in zip(axes, systems.values(), strict=True):
            _speeds(one, found)
    return path


def _placement(placed: Sequence[Placed], path: Path) -> Path:
    """The rule as a line, simulated services as points of both kinds."""
    with panels(path, ["one more device: where it serves faster"]) as (one,):
        scalings = [1 + step / 100 for step in range(101)]
        for kept, style, label in (
            (KEPT, "-", "rule, hits .9"), (1.0, ":", "below: in the target in any case"),
        ):  # fmt: skip
            shares = [least_draft_share(scaling, kept=kept) for scaling in scalings]
            one.plot(scalings, shares, "k" + style, label=label)
        for drafts, colour, label in (
            (True, "#1f6fb2", "simulated: drafting"),
            (False, "#c8641e", "simulated: in the target"),
        ):  # fmt: skip
            points = [each for each in placed if (each.simulated > 1) is drafts]
            places = [each.target_scaling for each in points]
            one.plot(places, [each.draft_share for each in points], "o", color=colour, label=label)
        one.set_xlabel("times as fast that forwards get with it")
        one.set_ylabel("drafting, as a share of a forward")
        one.legend(fontsize=7)
    return path


def _speeds(axes: Any, loads: Sequence[Load]) -> None:  # noqa: ANN401 - matplotlib
    for arm, found in _grouped(loads, lambda each: each.arm).items():
        sizes = [each.num_at_once for each in found]
        axes.plot(sizes, [each.over_off for each in found], "o-", label=arm, markersize=3)
    axes.axhline(1.0, color="black", linewidth=0.8)
    _by_requests(axes, [each.num_at_once for each in loads], "tok/s by plain, predicted")


def _by_requests(axes: Any, sizes: Iterable[int], label: str) -> None:  # noqa: ANN401 - matplotlib
    axes.set_xscale("log", base=2)
    shown = sorted(set(sizes))
    axes.set_xticks(shown, list(map(str, shown)), fontsize=8)
    axes.set_xlabel("requests at once")
    axes.set_ylabel(label)
    axes.legend(fontsize=7)


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
