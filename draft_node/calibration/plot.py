"""The reliability diagram. The only place here that knows matplotlib, imported late."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draft_node.calibration.collect import Samples
from draft_node.calibration.metrics import bins
from specserve.drafters.probs_confidence import Floats

_DPI = 96
_COLOURS = 64  # a palette: the diagram travels with the drafter, and this is a third of its bytes
MISSING = "matplotlib is missing (pip install 'specserve[bench]'): no reliability diagram"


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw_reliability(
    path: Path, samples: Samples, predicted: dict[str, Floats], title: str
) -> None:
    """One panel for each of `predicted` survivals [N, G], one line a position."""
    import matplotlib

    matplotlib.use("agg")  # no display here, and none wanted
    import matplotlib.pyplot as plt
    from PIL import Image  # matplotlib's own dependency

    figure, panels = plt.subplots(
        1, len(predicted), figsize=(4.2 * len(predicted), 4.2), sharey=True, squeeze=False
    )
    for axes, (name, survivals) in zip(panels[0], predicted.items(), strict=True):
        _panel(axes, samples, survivals, plt.get_cmap("viridis"))
        axes.set_title(name, fontsize=10)
    panels[0][0].set_ylabel("observed survival")
    panels[0][-1].legend(title="position", fontsize=8, loc="upper left")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    with Image.open(path) as image:
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def _panel(axes: Any, samples: Samples, survivals: Floats, colours: Any) -> None:  # noqa: ANN401
    gamma = survivals.shape[1]
    axes.plot([0, 1], [0, 1], color="#8a8a8a", linewidth=0.8, linestyle="--")
    for k in range(gamma):
        rows = samples.counted[:, k]
        if not rows.any():
            continue
        seen = bins(survivals[rows, k], samples.survived[rows, k])
        colour = colours(k / max(1, gamma - 1))
        axes.plot(seen.predictions, seen.targets, color=colour, linewidth=0.8, label=str(k + 1))
        shares = seen.counts / seen.counts.sum()
        axes.scatter(seen.predictions, seen.targets, s=120 * shares, color=colour)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("predicted survival")
