# pyright: strict
"""The diagram of `specserve profile`. The only place here that knows matplotlib, imported late."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specserve.settings.step_files import StepCell, StepRecord

MISSING = "matplotlib is missing; pip install 'specserve[bench]' brings it"


def can_draw() -> bool:
    """Whether there is anything to draw with."""
    return find_spec("matplotlib") is not None


def draw(
    record: StepRecord,
    contexts: Sequence[int],
    path: Path,
    seconds_of: Callable[[StepRecord, StepCell, int], float],
) -> None:
    """Milliseconds, and steps a second, over tokens of a forward; a line for each context."""
    import matplotlib

    matplotlib.use("agg")  # no display here, and none wanted
    import matplotlib.pyplot as plt

    pyplot: Any = plt
    figure, (times, rates) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    tokens = [cell.num_tokens for cell in record.cells]
    for context in contexts:
        seconds = [seconds_of(record, cell, context) for cell in record.cells]
        times.plot(tokens, [1000 * s for s in seconds], marker=".", label=f"{context} tokens")
        rates.plot(tokens, [1 / s for s in seconds], marker=".", label=f"{context} tokens")
    for axes, what in ((times, "ms of a forward"), (rates, "steps a second")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of the forward")
        axes.set_ylabel(what)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    times.legend(title="context of a row")
    figure.suptitle(f"{record.made_for['topology']}, {record.made_for['hardware']}", fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
