"""Plots of the benches, one panel beside the other. Knows matplotlib and Pillow, imported late."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bootstrap import Interval

_DPI = 130
_PANEL_INCHES = (4.0, 3.4)
_NUM_COLOURS = 64


@contextmanager
def panels(path: Path, titles: Sequence[str]) -> Generator[list[Any]]:
    """One set of axes for each title, written to `path` as a PNG in the end."""
    import matplotlib

    matplotlib.use("agg")  # no display here, and none wanted
    import matplotlib.pyplot as plt

    width, height = _PANEL_INCHES
    figure, grid = plt.subplots(
        1, len(titles), figsize=(width * len(titles), height), sharey=True, squeeze=False
    )
    axes = list(grid[0])
    for one, title in zip(axes, titles, strict=True):
        one.set_title(title, fontsize=10)
    try:
        yield axes
        figure.tight_layout()
        figure.savefig(path, dpi=_DPI)
        reduce_colours(path)
    finally:
        plt.close(figure)


def reduce_colours(path: Path) -> None:
    """Rewrite a picture without transparency as a PNG of 64 colours, a third as large as of all.

    Lines and letters have few, and the shades of their edges are hardly seen.
    """
    from PIL import Image

    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(_NUM_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def spreads(found: Sequence[Interval]) -> list[list[float]]:
    """Distances of the ends of intervals from their values, as `errorbar` wants them."""
    return [
        [max(0.0, one.value - one.low) for one in found],
        [max(0.0, one.high - one.value) for one in found],
    ]
