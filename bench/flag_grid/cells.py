# pyright: strict
"""Which services a grid has: no flags, cells of it that a seed draws, and the best known by hand.

How many outcomes are drafted at once is no flag: a service finds out. A cell that names another
number sets the constant in its processes, by what Python imports first of all.
"""

import os
import random
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.services.service import ASYNC, AUTO, SYNC, Service
from specserve.settings.kept_files import FOLDER_VARIABLE
from specserve.types import DRAFT_BATCH_SIZE

GAMMAS, FAN_OUTS, BATCHES = (3, 5, 7, 9, 12), (4, 8, 16, 32), (1, 4, 16)
NO_FLAGS = "no flags"


class Cell(NamedTuple):
    """One service. None: the service decides."""

    name: str
    flags: tuple[str, ...]
    batch: int | None = None

    @property
    def service(self) -> Service:
        """With a draft process, but where nobody would use it."""
        mode = AUTO if self.name == NO_FLAGS else SYNC if SYNC in self.flags else ASYNC
        num_drafts = int(mode != SYNC)
        flags = ("--topology", f"1+{num_drafts}", *self.flags)
        return Service(name=self.name, mode=mode, flags=flags, num_drafts=num_drafts)


BY_HAND = (
    Cell("sync", ("--speculation", SYNC)),
    Cell("async", ("--speculation", ASYNC)),
)


def grid_cell(gamma: int, fan_out: int, batch: int) -> Cell:
    """Asynchronous: fan-out and batches are of draft processes."""
    words = ("--speculation", ASYNC, "--gamma", str(gamma), "--fan-out", str(fan_out))
    return Cell(f"g{gamma} f{fan_out} b{batch}", words, batch)


# 1.36 times as fast as what was the default of the toy, by hand.
KNOWN = grid_cell(12, 8, 4)


def cells_of(num_drawn: int, seed: int) -> list[Cell]:
    """No flags first, then what is known by hand, then the drawn ones."""
    every = [(g, f, b) for g in GAMMAS for f in FAN_OUTS for b in BATCHES]
    drawn = [grid_cell(*each) for each in random.Random(seed).sample(every, len(every))]
    others = [cell for cell in drawn if cell != KNOWN][:num_drawn]
    return [Cell(NO_FLAGS, ()), *BY_HAND, KNOWN, *others]


_IMPORTED_FIRST = """import specserve.types
specserve.types.DRAFT_BATCH_SIZE = {batch}
"""


@contextmanager
def fresh(batch: int | None) -> Generator[None]:
    """Services that are launched meanwhile draft so many outcomes at once.

    And know nothing of what others have measured.
    """
    path = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(_environment(FOLDER_VARIABLE, str(Path(folder, "cache"))))
        if batch is not None and batch != DRAFT_BATCH_SIZE:
            (Path(folder) / "sitecustomize.py").write_text(_IMPORTED_FIRST.format(batch=batch))
            words = [folder, *([path] if path else [])]
            stack.enter_context(_environment("PYTHONPATH", os.pathsep.join(words)))
        yield


@contextmanager
def _environment(name: str, value: str) -> Generator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
