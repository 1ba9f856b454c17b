# pyright: strict
"""Chains as rows of pages: each has its row's full pages, and behind them pages of its own. Pure.

A chain that stands behind some positions of a row writes where that row, or a branch beside it, has
other tokens. So the page in which it begins is a copy, and those behind it are new; pages before it
are read by all branches where they lie. Then one pass of all chains is a forward of one token a
row, as decoding is, and attends by the same kernels and graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK


@dataclass(frozen=True)
class ChainTables:
    """Of B chains with P pages of their own."""

    lengths: NDArray[np.int64]  # [B], positions before each
    pads: NDArray[np.int64]  # [B], tokens of each that stand in the place of its first real one
    tables: list[NDArray[np.int64]]  # of each, in order
    own_pages: NDArray[np.int64]  # [P]
    sources: NDArray[np.int64]  # [P] what each of these begins as; the null block where it is new

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        tables: Sequence[NDArray[np.int64]],
        num_passes: int,
        *,
        own_pages: NDArray[np.int64],
        page_size: int,
        pads: Sequence[int] | None = None,
    ) -> "ChainTables":
        """Chains of `num_passes` tokens behind the first `lengths` positions of rows with `tables`.

        `own_pages`: `num_own_pages` that no row has.
        """
        found: list[NDArray[np.int64]] = []
        sources = np.full(len(own_pages), NULL_BLOCK, dtype=np.int64)
        start = 0
        for length, table in zip(lengths, tables, strict=True):
            num_full = length // page_size
            end = start + _num_own(length, num_passes, page_size)
            found.append(np.concatenate([table[:num_full], own_pages[start:end]]))
            if length % page_size:
                sources[start] = table[num_full]
            start = end
        return cls(
            lengths=np.array(lengths, dtype=np.int64),
            pads=np.array(pads or [0] * len(lengths), dtype=np.int64),
            tables=found,
            own_pages=own_pages,
            sources=sources,
        )

    def batch(self, num_before: int) -> AttentionBatch:
        """Of the pass behind `num_before` others: one token of every chain.

        One that pads is written over by the next, so that nobody else sees it.
        """
        kept = np.maximum(num_before - self.pads, 0)
        return AttentionBatch(np.ones_like(kept), self.lengths + kept + 1, self.tables)


def num_own_pages(lengths: Sequence[int], num_passes: int, page_size: int) -> int:
    """Pages that all chains together have for themselves."""
    return sum(_num_own(length, num_passes, page_size) for length in lengths)


def _num_own(length: int, num_passes: int, page_size: int) -> int:
    return -(-(length + num_passes) // page_size) - length // page_size
