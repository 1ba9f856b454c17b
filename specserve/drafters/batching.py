"""What every drafter does with an update or a batch before its own work."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.drafters.context import ContextRows
from specserve.drafters.protocol import DraftBatch


def flat_positions(starts: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Positions of flattened updates, row by row: [sum(counts)] int64."""
    return torch.cat(
        [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    )


def context_lens(batch: DraftBatch, rows: ContextRows) -> list[int]:
    """How many positions precede each block, [B]. ValueError for none, or more than there are."""
    whole = [rows.length(row) for row in batch.rows]
    lengths = whole if batch.context_lens is None else list(batch.context_lens)
    for row, length, limit in zip(batch.rows, lengths, whole, strict=True):
        if not 1 <= length <= limit:
            raise ValueError(f"row {row}: a block cannot follow {length} of {limit} positions")
    return lengths


def refuse_gap(batch: DraftBatch) -> None:
    """For drafters that cannot bridge missing features: ValueError if a block needs it."""
    if batch.max_gap():
        raise ValueError("this drafter cannot draft behind tokens that are not in its context")
