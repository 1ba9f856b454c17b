"""The plots of one run of `bench.engine`. The only place that knows matplotlib, imported late."""

from pathlib import Path
from typing import Any

from bench.breakdown import STAGES
from bench.figures import reduce_colours
from bench.summary import OVERHEAD_GOAL, Results

_SERVED, _TRANSFORMERS, _BARE = "#1f6fb2", "#c8641e", "#8a8a8a"
_DPI = 130


def draw(results: Results, out: Path) -> list[Path]:
    """Write throughput.png and stages.png."""
    import matplotlib

    matplotlib.use("agg")  # no display here, and none wanted
    import matplotlib.pyplot as plt

    paths: list[Path] = []
    for name, draw_into, width in (("throughput", _throughput, 9.0), ("stages", _stages, 7.0)):
        figure, axes = plt.subplots(1, 2 if name == "throughput" else 1, figsize=(width, 3.4))
        draw_into(axes, results)
        figure.tight_layout()
        path = out / f"{name}.png"
        figure.savefig(path, dpi=_DPI)
        reduce_colours(path)
        plt.close(figure)
        paths.append(path)
    return paths


def _throughput(axes: Any, results: Results) -> None:  # noqa: ANN401 - matplotlib's own types vary
    """Tokens per second of both arms; round over bare forward."""
    left, right = axes
    places = list(range(len(results.rows)))
    labels = [str(row.batch_size) for row in results.rows]
    served = [row.served_tokens_per_s for row in results.rows]
    transformers = [row.transformers_tokens_per_s for row in results.rows]
    left.bar([p - 0.2 for p in places], served, 0.4, label="specserve, over gRPC", color=_SERVED)
    left.bar(
        [p + 0.2 for p in places], transformers, 0.4, label="transformers generate",
        color=_TRANSFORMERS,
    )  # fmt: skip
    for place, row in zip(places, results.rows, strict=True):
        height = max(row.served_tokens_per_s, row.transformers_tokens_per_s)
        left.annotate(f"x {row.ratio_to_transformers:.2f}", (place, height), (0, 3),
            textcoords="offset points", ha="center",
        )  # fmt: skip
    left.set_xticks(places, labels)
    left.set_xlabel("batch size")
    left.set_ylabel("tokens/s, whole calls")
    left.margins(y=0.15)
    left.legend(fontsize=8)
    values = [row.overhead.value for row in results.rows]
    low = [row.overhead.value - row.overhead.low for row in results.rows]
    high = [row.overhead.high - row.overhead.value for row in results.rows]
    right.errorbar(places, values, yerr=[low, high], fmt="o", color=_SERVED, capsize=4)
    right.axhline(OVERHEAD_GOAL, color=_BARE, linestyle="--", label=f"goal {OVERHEAD_GOAL:.2f}")
    right.axhline(1.0, color="black", linewidth=0.8)
    right.set_xticks(places, labels)
    right.set_xlabel("batch size")
    right.set_ylabel("round / bare forward")
    right.set_ylim(bottom=0.95)
    right.margins(x=0.3)
    right.legend(fontsize=8)


def _stages(axes: Any, results: Results) -> None:  # noqa: ANN401
    """What a round spends outside of the model, by stage."""
    outside = [stage for stage in STAGES if stage not in ("model", "head")]
    sizes = list(results.stages_us)
    starts = [0.0] * len(sizes)
    for stage in outside:
        widths = [results.stages_us[size][stage] for size in sizes]
        axes.barh([f"batch {size}" for size in sizes], widths, left=starts, label=stage)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlabel("microseconds of a decode round outside of model and head")
    axes.legend(fontsize=8, ncols=2)
