# pyright: strict
"""Draft blocks behind contexts, as two levels of page tables whose results are merged. Pure.

A block's tokens see the context of their row up to some length, the tokens of the gap before them
and each other; tokens of a gap see the context and the gap before themselves. So there are two
levels, and a query belongs to one row of each:

- trunks: blocks beside each other that stand behind the same positions of the same row are one row
  of queries, and what they share is read once for all of them;
- own keys: a block is a row over its gap and itself, and each token of its gap is a row of its own
  over the gap so far. They lie in pages of their own, which begin at a block's first token.

Within a row every query sees every key. So nothing needs a mask: one of (queries x keys) bits would
have to be made on the host and copied every round, would read a trunk once a branch, and asks for a
kernel that Hopper's faster one has no form of. See docs/decisions/0042-flashinfer.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from specserve.backends.cuda.page_tables import PageTables


@dataclass(frozen=True)
class BlockTables:
    """N tokens of B blocks, block after block: the gap's, then the block's own S."""

    trunks: PageTables
    own: PageTables
    positions: NDArray[np.int64]  # [N]
    slots: NDArray[np.int64]  # [N] where each token's keys and values have to be written first
    own_tokens: NDArray[np.int64]  # [B * S] which of the N are no gap's

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        lengths: Sequence[int],
        gaps: Sequence[int],
        size: int,
        *,
        tables: Sequence[NDArray[np.int64]],
        first_page: int,
        page_size: int,
    ) -> "BlockTables":
        """Blocks of `size` tokens behind `gaps` tokens behind the first `lengths` of their `rows`.

        `tables`: pages of each block's row; `first_page`: of `num_own_pages` that are nobody's.
        """
        spans = np.asarray(gaps, dtype=np.int64) + size
        pages = -(-spans // page_size)
        firsts = first_page + np.cumsum(pages) - pages
        offsets = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
        return cls(
            trunks=_trunks(rows, lengths, spans, tables, page_size),
            own=_own(gaps, size, firsts, pages, page_size),
            positions=np.repeat(np.asarray(lengths, dtype=np.int64), spans) + offsets,
            slots=np.repeat(firsts * page_size, spans) + offsets,
            own_tokens=np.flatnonzero(
                offsets >= np.repeat(np.asarray(gaps, dtype=np.int64), spans)
            ),
        )


def num_trunks(rows: Sequence[int], lengths: Sequence[int]) -> int:
    """Rows of `BlockTables.trunks`."""
    return sum(1 for _ in groupby(zip(rows, lengths, strict=True)))


def num_own_pages(gaps: Sequence[int], size: int, page_size: int) -> int:
    """Pages that blocks' own keys take."""
    return sum(-(-(gap + size) // page_size) for gap in gaps)


def _trunks(
    rows: Sequence[int],
    lengths: Sequence[int],
    spans: NDArray[np.int64],
    tables: Sequence[NDArray[np.int64]],
    page_size: int,
) -> PageTables:
    counts, ends, shared = list[int](), list[int](), list[NDArray[np.int64]]()
    blocks = zip(rows, lengths, spans.tolist(), tables, strict=True)
    for (_, length), group in groupby(blocks, key=lambda block: block[:2]):
        members = list(group)
        counts.append(sum(span for _, _, span, _ in members))
        ends.append(length)
        shared.append(members[0][3])
    return PageTables.of(counts, ends, shared, page_size)


def _own(
    gaps: Sequence[int],
    size: int,
    firsts: NDArray[np.int64],
    pages: NDArray[np.int64],
    page_size: int,
) -> PageTables:
    counts, ends, tables = list[int](), list[int](), list[NDArray[np.int64]]()
    for gap, first, num_pages in zip(gaps, firsts.tolist(), pages.tolist(), strict=True):
        counts += [1] * gap + [size]
        ends += (*range(1, gap + 1), gap + size)
        tables += [np.arange(first, first + num_pages)] * (gap + 1)
    return PageTables.of(counts, ends, tables, page_size)
