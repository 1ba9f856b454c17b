"""The plots of `bench.sweep`: what users and all get, verify budgets, speed-ups, goodput."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.bootstrap import Interval
from bench.figures import panels, spreads
from bench.services.service import OFF
from bench.sweep.plan import Targets
from bench.sweep.results import Row

Figure = Callable[[Row], Interval | None]
_Panel = Callable[[Any, Sequence[Row]], None]


def draw(rows: Sequence[Row], targets: Targets, out: Path) -> list[Path]:
    """Those that there are figures for, in `out`."""
    closed = [row for row in rows if row.load.is_closed]
    opened = [row for row in rows if not row.load.is_closed]
    drafting = [row for row in closed if row.mode != OFF]
    against_off = [row for row in closed if row.over_off is not None]

    def interactivity(axes: Any, own: Sequence[Row]) -> None:  # noqa: ANN401 - matplotlib
        for arm, found in _by_arm(own).items():
            known = [row for row in found if row.tokens_per_s and row.tokens_per_s_per_user]
            users = [row.tokens_per_s_per_user.value for row in known if row.tokens_per_s_per_user]
            everybody = [row.tokens_per_s.value for row in known if row.tokens_per_s]
            axes.plot(users, everybody, "o-", markersize=3, label=arm)
        axes.axvline(targets.interactivity, color="black", linewidth=0.8, linestyle="--")
        axes.set_xlabel("tok/s for each user (dashed: target)")
        axes.set_ylabel("tok/s of all")

    plots: tuple[tuple[str, Sequence[Row], _Panel], ...] = (
        ("interactivity", closed, interactivity),  # DSpark, Figure 7
        ("budget", drafting, _by_load(lambda row: row.verified, "drafted tokens verified a round")),
        ("accept_len", drafting, _by_load(lambda row: row.accept_len, "tokens a round")),
        ("speedup", against_off, _by_load(lambda row: row.over_off, "tok/s by plain", 1.0)),
        ("goodput", opened, _by_load(lambda row: row.goodput, "requests/s in time")),
    )
    paths = [_drawn(out / f"{name}.png", own, panel) for name, own, panel in plots]
    return [path for path in paths if path is not None]


def _drawn(path: Path, rows: Sequence[Row], panel: _Panel) -> Path | None:
    """One panel for each temperature and kind of arrivals."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        title = f"T {row.temperature:g}" + (f", {row.load.arrivals}" if row.load.arrivals else "")
        grouped.setdefault(title, []).append(row)
    if not grouped:
        return None
    with panels(path, list(grouped)) as axes:
        for one, own in zip(axes, grouped.values(), strict=True):
            panel(one, own)
            one.legend(fontsize=6)
    return path


def _by_load(figure: Figure, label: str, level: float | None = None) -> _Panel:
    """DSpark, Figure 8, and SSD, Figure 6: a line for each arm."""

    def panel(axes: Any, own: Sequence[Row]) -> None:  # noqa: ANN401 - matplotlib
        for arm, rows in _by_arm(own).items():
            points = [(row.load.size, found) for row in rows if (found := figure(row)) is not None]
            places, found = [size for size, _ in points], [each for _, each in points]
            heights = [each.value for each in found]
            errors = spreads(found)
            axes.errorbar(
                places, heights, yerr=errors, fmt="o-", markersize=3, capsize=2, label=arm
            )
        if level is not None:
            axes.axhline(level, color="black", linewidth=0.8)
        sizes = sorted({row.load.size for row in own})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        is_closed = own[0].load.is_closed
        axes.set_xlabel("requests in flight" if is_closed else "requests a second that arrive")
        axes.set_ylabel(label)

    return panel


def _by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.arm, []).append(row)
    return found
