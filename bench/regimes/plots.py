"""The plots of `bench.regimes`: hit rates, the price of the feature gap, speed by batch size."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.bootstrap import Interval
from bench.figures import panels, spreads
from bench.regimes.arms import ASYNC, FAN_OUT, OFF, SYNC
from bench.regimes.results import Row

_MIN_ROUNDS = 5  # behind a point of the gap plot
_Point = tuple[float, Interval]


def draw(rows: Sequence[Row], out: Path) -> list[Path]:
    """Those plots that there are figures for, in `out`, which is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    drawn: list[Path | None] = []
    for domain, own in _grouped(rows, lambda row: row.setting.domain).items():
        budgets = [row for row in own if is_of_budgets(row)]
        drawn += [
            _by_fan_out(budgets, out / f"hit_rate_{domain}.png", lambda r: r.hit_rate, "hit rate"),
            _by_fan_out(
                budgets, out / f"fan_out_{domain}.png", lambda r: r.ratio_to_off, "tok/s by plain"
            ),
            _gap(own, out / f"gap_{domain}.png"),
            _batch(own, out / f"batch_{domain}.png"),
        ]
    return [path for path in drawn if path is not None]


def is_of_budgets(row: Row) -> bool:
    """Of a contest of fan-out budgets, plain decoding apart."""
    return FAN_OUT in row.setting.contest and row.mode == ASYNC


def _by_fan_out(
    rows: Sequence[Row], path: Path, figure: Callable[[Row], Interval | None], label: str
) -> Path | None:
    """SSD, Figures 3 and 4: one panel for each sampling."""
    by_sampling = _grouped(rows, lambda row: f"{_drafter(row)}, {_sampling(row)}")
    if not by_sampling:
        return None
    with panels(path, list(by_sampling)) as axes:
        for one, found in zip(axes, by_sampling.values(), strict=True):
            _line(one, _points(found, lambda row: row.fan_out, figure), label)
            one.set_xscale("log", base=2)
            one.set_xlabel("fan-out budget of a row")
            one.set_ylabel(label)
            _legend(one)
    return path


def _gap(rows: Sequence[Row], path: Path) -> Path | None:
    """Accept length against the tokens of the round before: a prepared block lacks their features.

    The synchronous line is the same condition without the gap.
    """
    shown = [
        row for row in rows
        if row.by_gap and row.setting.contest in ("dspark", "lm", "ngram") and row.threads == 1
        and row.mode in (SYNC, ASYNC) and row.setting.batch_size == 1
    ]  # fmt: skip
    by_sampling = _grouped(shown, lambda row: f"{row.setting.contest}, {_sampling(row)}")
    if not by_sampling:
        return None
    with panels(path, list(by_sampling)) as axes:
        for one, found in zip(axes, by_sampling.values(), strict=True):
            for row in found:
                points = [p for p in row.by_gap if p.num_rounds >= _MIN_ROUNDS]
                name = f"{row.arm}, {row.setting.ballast}"
                one.plot([p.gap for p in points], [p.accept_len for p in points], "o-", label=name)
            one.set_xlabel("tokens of the round before (async: gap)")
            one.set_ylabel("accept length of drafted rounds")
            _legend(one)
    return path


def _batch(rows: Sequence[Row], path: Path) -> Path | None:
    """SSD, Figure 6: speed over plain decoding against batch size."""
    shown = [row for row in rows if row.ratio_to_off is not None and _is_basic(row)]
    by_sampling = _grouped(shown, lambda row: f"{row.setting.ballast}, {_sampling(row)}")
    if not by_sampling:
        return None
    with panels(path, list(by_sampling)) as axes:
        for one, found in zip(axes, by_sampling.values(), strict=True):
            for arm, own in _grouped(found, lambda row: row.arm).items():
                points = _points(own, lambda r: r.setting.batch_size, lambda r: r.ratio_to_off)
                _line(one, points, arm)
            one.axhline(1.0, color="black", linewidth=0.8)
            one.set_xscale("log", base=2)
            one.set_xlabel("batch size")
            one.set_ylabel("tok/s by that of plain decoding")
            _legend(one)
    return path


def _is_basic(row: Row) -> bool:
    return row.setting.contest in ("dspark", "lm", "ngram", "miss policy") and (
        row.mode != OFF or row.threads > 1
    )


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _points(
    rows: Sequence[Row], x: Callable[[Row], float], y: Callable[[Row], Interval | None]
) -> list[_Point]:
    found = {x(row): interval for row in rows if (interval := y(row)) is not None}
    return sorted(found.items(), key=lambda point: point[0])


def _line(axes: Any, points: Sequence[_Point], label: str) -> None:  # noqa: ANN401 - matplotlib
    found = [interval for _, interval in points]
    if found:
        heights = [one.value for one in found]
        places = [place for place, _ in points]
        axes.errorbar(places, heights, yerr=spreads(found), fmt="o-", capsize=3, label=label)


def _legend(axes: Any) -> None:  # noqa: ANN401 - matplotlib
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7)


def _sampling(row: Row) -> str:
    temperature = f"T {row.setting.temperature:g}"
    if row.setting.is_looping:
        return f"{temperature}, looping"
    return temperature if row.method == "any" else f"{temperature} {row.method}"


def _drafter(row: Row) -> str:
    return row.setting.contest.split(",")[0]
