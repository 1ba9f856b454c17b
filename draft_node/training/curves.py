"""How a run's figures on held-out text came about: a table, and a picture where one can be drawn.

The only place of training that knows matplotlib, imported late.
"""

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from draft_node.training.export import write_checksums

TABLE, PICTURE = "curve.csv", "curve.png"
_NO_FIGURES = ("active_s", "tokens")  # of an entry of the history: when it was measured
_DPI = 96
_COLOURS = 32  # a palette: the picture travels with the drafter


def write_curves(history: Sequence[dict[str, float]], out: Path) -> None:
    """Add the curves of a run to the folder that it exported, and renew its checksums.

    `history` has an entry for each evaluation, as `Trainer.evaluate` makes them.
    """
    names = list(dict.fromkeys(name for entry in history for name in entry))
    with (out / TABLE).open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({n: round(v, 4) for n, v in entry.items()} for entry in history)
    (out / PICTURE).unlink(missing_ok=True)  # an earlier run's, into the same folder
    if find_spec("matplotlib") is not None:
        _draw(history, [name for name in names if name not in _NO_FIGURES], out / PICTURE)
    write_checksums(out)


def _draw(history: Sequence[dict[str, float]], names: Sequence[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")  # no display here, and none wanted
    import matplotlib.pyplot as plt
    from PIL import Image  # matplotlib's own dependency

    figure, axes = plt.subplots(figsize=(5.6, 3.4))
    for name in names:
        measured = [entry for entry in history if name in entry]
        tokens = [entry["tokens"] / 1e6 for entry in measured]
        axes.plot(tokens, [entry[name] for entry in measured], marker=".", label=name)
    axes.set_xlabel("million tokens that were read")
    axes.set_ylabel("on held-out text")
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    with Image.open(path) as image:
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)
