"""The plot of `bench.sync_speed`: ratios to plain decoding at the smallest batch, by target."""

from collections.abc import Sequence
from pathlib import Path

from bench.bootstrap import Interval
from bench.figures import panels, spreads
from bench.sync_speed.results import Row


def draw(rows: Sequence[Row], out: Path) -> Path | None:
    """Write speed.png, one panel for each size of target; None without a ratio."""
    smallest = min((row.setting.batch_size for row in rows), default=0)
    shown: dict[str, list[tuple[Row, Interval]]] = {}
    for row in rows:
        if row.ratio is not None and row.setting.batch_size == smallest:
            shown.setdefault(row.setting.ballast, []).append((row, row.ratio))
    if not shown:
        return None
    path = out / "speed.png"
    titles = [f"{ballast} target, batch {smallest} (groups)" for ballast in shown]
    with panels(path, titles) as axes:
        for one, found in zip(axes, shown.values(), strict=True):
            names = [_name(row) for row, _ in found]
            ratios = [ratio for _, ratio in found]
            heights = [ratio.value for ratio in ratios]
            one.bar(names, heights, yerr=spreads(ratios), capsize=3, color="#1f6fb2")
            predicted = [row.predicted for row, _ in found]
            one.plot(names, predicted, "o", color="#c8641e", label="predicted")
            one.axhline(1.0, color="black", linewidth=0.8)
            one.set_ylabel("tok/s by that of plain decoding")
            one.tick_params(axis="x", labelrotation=60, labelsize=7)
            one.legend(fontsize=8)
    return path


def _name(row: Row) -> str:
    setting = row.setting
    sampling = f"T {setting.temperature:g}" + (f" {row.method}" if setting.temperature else "")
    return f"{row.drafter}, {setting.domain}, {sampling} ({row.num_groups})"
