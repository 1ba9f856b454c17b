"""Flattened tokens and paged contexts as arrays of equal rows: what one fused product needs.

And what every drafter does with an update or a batch before its own work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.drafters.context import BLOCK_SIZE, ContextRows, TorchContext
from specserve.drafters.protocol import DraftBatch
from specserve.models.kv_cache import NULL_BLOCK


@dataclass(frozen=True)
class RowLayout:
    """Tokens of R rows laid out as `width` places a row; padding holds any token."""

    slots: NDArray[np.int64]  # [N] row * width + place of each token
    width: int
    source: Tensor | None  # [R * width] which token stands in each place; None: they are in order
    target: Tensor | None  # [N] `slots`

    @staticmethod
    def of(rows: NDArray[np.int64], num_rows: int, device: torch.device) -> "RowLayout":
        """`rows` [N]: the row of each token, 0 .. num_rows - 1."""
        counts = np.bincount(rows, minlength=num_rows)
        width = int(counts.max())
        order = np.argsort(rows, kind="stable")
        slots = np.empty(len(rows), dtype=np.int64)
        slots[order] = rows[order] * width + places_within(counts)
        if np.array_equal(slots, np.arange(num_rows * width)):
            return RowLayout(slots, width, None, None)
        source = np.zeros(num_rows * width, dtype=np.int64)
        source[slots] = np.arange(len(rows))
        return RowLayout(
            slots, width, torch.from_numpy(source).to(device), torch.from_numpy(slots).to(device)
        )

    def spread(self, x: Tensor) -> Tensor:
        """[N, ...] -> [R * width, ...]"""
        return x if self.source is None else x.index_select(0, self.source)

    def collect(self, x: Tensor) -> Tensor:
        """The inverse."""
        return x if self.target is None else x.index_select(0, self.target)

    def entries(self, entries: Tensor, num_rows: int) -> Tensor:
        """[N, kv_heads, head_dim] -> [kv_heads, R, width, head_dim]"""
        spread = self.spread(entries)
        return spread.view(num_rows, -1, *entries.shape[1:]).permute(2, 0, 1, 3)

    def queries(self, q: Tensor, num_rows: int, kv_heads: int) -> Tensor:
        """[N, heads, head_dim] -> [kv_heads, R, width * heads a kv_head, head_dim]"""
        head_dim = q.shape[-1]
        spread = self.spread(q).view(num_rows, self.width, kv_heads, -1, head_dim)
        return spread.permute(2, 0, 1, 3, 4).reshape(kv_heads, num_rows, -1, head_dim)

    def outputs(self, out: Tensor, like: Tensor) -> Tensor:
        """The inverse of `queries`."""
        kv_heads, num_rows, _, head_dim = out.shape
        out = out.view(kv_heads, num_rows, self.width, -1, head_dim).permute(1, 2, 0, 3, 4)
        return self.collect(out.reshape(-1, *like.shape[1:]))


def places_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 .. count - 1 for each count in turn."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def pages_of(context: TorchContext, rows: Sequence[int], num_more: int = 0) -> tuple[Tensor, int]:
    """Which pages to gather, as many for every row, and how many positions a row that is.

    Whole rows, whatever is used of them: the work does not tell how long the prefixes are. Room for
    `num_more` positions at least follows each of them, and is not counted.
    """
    tables = [context.rows.table(row) for row in rows]
    width = max(map(len, tables))
    num_pages = width + -(-num_more // BLOCK_SIZE)
    pages = np.full((len(tables), num_pages), NULL_BLOCK, dtype=np.int64)
    for place, table in enumerate(tables):
        pages[place, : len(table)] = table
    cache = context.cache
    flat = cache.flat_blocks(torch.from_numpy(pages.ravel()).to(cache.device))
    return flat, width * BLOCK_SIZE


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
