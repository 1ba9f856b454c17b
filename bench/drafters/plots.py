"""The plots of `bench.drafters`: one panel for each domain."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.drafter_choice import DFLASH
from bench.drafters.results import Cell, Results
from bench.figures import panels, spreads

_REJECTED = {"color": "white", "edgecolor": "#8a8a8a", "hatch": "///"}


def draw(results: Results, out: Path) -> list[Path]:
    """Write a PNG for every table that has one; under the sampling that sweeps are made under."""
    swept = _same_sampling(results.cells)
    baselines = [cell for cell in swept if cell.drafter == DFLASH]
    paths: list[Path] = []

    def add(name: str, cells: Sequence[Cell], draw_into: Callable[[Any, list[Cell]], None]) -> None:
        if cells:
            paths.append(_draw_by_domain(out / name, cells, draw_into))

    add("accept_len.png", swept, _accept_len_bars)
    add("conditional.png", swept, _conditional_lines)
    add("gamma.png", results.gamma_sweep, _gamma_lines)
    if results.depth_sweep:
        add("depth.png", [*results.depth_sweep, *baselines], _depth_line)
    for label in dict.fromkeys(cell.drafter for cell in results.threshold_sweep):
        cells = [cell for cell in results.threshold_sweep if cell.drafter == label]
        add(f"threshold_{label}.png", cells, _threshold_bars)
    return paths


def _same_sampling(cells: Sequence[Cell]) -> list[Cell]:
    samplings = [(cell.condition.temperature, cell.condition.method) for cell in cells]
    return [
        cell for cell, sampling in zip(cells, samplings, strict=True) if sampling == samplings[0]
    ]


def _draw_by_domain(
    path: Path, cells: Sequence[Cell], draw_into: Callable[[Any, list[Cell]], None]
) -> Path:
    domains = list(dict.fromkeys(cell.condition.domain for cell in cells))
    sampling = f"temperature {cells[0].condition.temperature:g}, {cells[0].condition.method_name}"
    prompts = {cell.condition.domain: cell.accept_len.num_prompts for cell in cells}
    titles = [f"{domain}, {prompts[domain]} prompts\n{sampling}" for domain in domains]
    with panels(path, titles) as axes:
        for one, domain in zip(axes, domains, strict=True):
            draw_into(one, [cell for cell in cells if cell.condition.domain == domain])
    return path


def _accept_len_bars(axes: Any, cells: list[Cell]) -> None:  # noqa: ANN401 - matplotlib's own
    lengths = [cell.accept_len for cell in cells]
    axes.bar(
        [cell.drafter for cell in cells],
        [one.value for one in lengths],
        yerr=spreads(lengths),
        capsize=3,
        color="#1f6fb2",
    )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("accept length")
    axes.tick_params(axis="x", labelrotation=30)


def _conditional_lines(axes: Any, cells: list[Cell]) -> None:  # noqa: ANN401
    for cell in cells:
        found = [(k + 1, one) for k, one in enumerate(cell.conditional) if one is not None]
        values = [one for _, one in found]
        axes.errorbar(
            [k for k, _ in found],
            [one.value for one in values],
            yerr=spreads(values),
            marker="o",
            markersize=3,
            capsize=2,
            label=cell.drafter,
        )
    axes.set_xticks(range(1, 1 + max(len(cell.conditional) for cell in cells)))
    axes.set_xlabel("position in the block")
    axes.set_ylabel("conditional acceptance")
    axes.set_ylim(0, 1.02)
    axes.legend(fontsize=8)


def _gamma_lines(axes: Any, cells: list[Cell]) -> None:  # noqa: ANN401
    for label in dict.fromkeys(cell.drafter for cell in cells):
        own = [cell for cell in cells if cell.drafter == label]
        lengths = [cell.accept_len for cell in own]
        axes.errorbar(
            [len(cell.conditional) for cell in own],
            [one.value for one in lengths],
            yerr=spreads(lengths),
            marker="o",
            markersize=3,
            capsize=2,
            label=label,
        )
    axes.set_xlabel("gamma")
    axes.set_ylabel("accept length")
    axes.legend(fontsize=8)


def _depth_line(axes: Any, cells: list[Cell]) -> None:  # noqa: ANN401
    own = sorted((c for c in cells if c.drafter != DFLASH), key=lambda c: int(c.drafter))
    lengths = [cell.accept_len for cell in own]
    axes.errorbar(
        [int(cell.drafter) for cell in own],
        [one.value for one in lengths],
        yerr=spreads(lengths),
        marker="o",
        capsize=3,
    )
    for cell in cells:
        if cell.drafter == DFLASH:
            axes.axhline(cell.accept_len.value, linestyle="--", color="#8a8a8a", label=DFLASH)
            axes.legend(fontsize=8)
    axes.set_xticks([int(cell.drafter) for cell in own])
    axes.set_xlabel("drafter layers")
    axes.set_ylabel("accept length")


def _threshold_bars(axes: Any, cells: list[Cell]) -> None:  # noqa: ANN401
    """Accepted and rejected tokens a round as bars, the accepted share as a line."""
    names = [f"{cell.condition.min_survival:g}" for cell in cells]
    accepted = [cell.accept_len.value - 1 for cell in cells]
    rejected = [
        cell.verified_len.value - length for cell, length in zip(cells, accepted, strict=True)
    ]
    axes.bar(names, accepted, color="#1f6fb2", label="accepted")
    axes.bar(names, rejected, bottom=accepted, label="rejected", **_REJECTED)
    axes.set_xlabel("least survival")
    axes.set_ylabel("verified tokens a round")
    shares = [cell.accepted_share for cell in cells]
    known = [(name, one) for name, one in zip(names, shares, strict=True) if one is not None]
    right = axes.twinx()
    values = [one for _, one in known]
    right.errorbar(
        [name for name, _ in known],
        [one.value for one in values],
        yerr=spreads(values),
        color="#c8641e",
        marker="o",
        markersize=3,
        capsize=2,
    )
    right.set_ylim(0, 1.02)
    right.set_ylabel("accepted share")
    axes.legend(fontsize=8, loc="upper right")
