"""What DSpark drafters of published shapes take for blocks of several lengths and fan-outs."""

from collections.abc import Iterator

import torch

from bench.gpu.records import Draft, Left, Report
from bench.gpu.scale import Given, Scale
from bench.gpu.shapes import DTYPE, Shape, backend_on, block_drafter_of
from bench.gpu.steps import give_back
from specserve.backends.base import Backend
from specserve.drafters.load import DrafterOptions
from specserve.drafters.warm_up import time_drafts
from specserve.settings.config import NUM_KEPT

_CONTEXT = 2048  # positions that all rows may have


def measure(given: Given, report: Report) -> None:
    """As a draft process measures itself at its start, while there is time."""
    scale = given.scale
    backend = backend_on(scale.device)
    for shape in scale.drafted_for:
        for gamma in scale.gammas:
            what = f"dspark of {gamma} tokens for {shape.name}"
            if given.is_over:
                report(Left(what=what, why="no time was left"))
                continue
            try:
                for found in _of_drafter(shape, gamma, scale, backend):
                    report(found)
            except torch.OutOfMemoryError as error:
                report(Left(what=what, why=f"does not fit: {str(error)[:160]}"))
            give_back(backend)


def _of_drafter(shape: Shape, gamma: int, scale: Scale, backend: Backend) -> Iterator[Draft]:
    drafter = block_drafter_of(
        shape, backend, gamma=gamma, num_layers=scale.draft_layers, num_context_tokens=_CONTEXT
    )
    options = DrafterOptions(
        dtype=DTYPE, backend=backend, num_context_tokens=_CONTEXT, max_positions=_CONTEXT
    )
    for blocks in scale.blocks:
        # Each by itself: a start has little time for all sizes, and captures take some of it.
        times = time_drafts(drafter, options, sizes=[blocks], num_kept=NUM_KEPT)
        yield Draft(
            drafter=f"dspark, {scale.draft_layers} layers",
            target=shape.name,
            gamma=gamma,
            blocks=blocks,
            seconds=times.seconds(blocks, gamma),
        )
