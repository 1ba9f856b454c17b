# pyright: strict
"""Which queries attend to which pages: the tables that paged attention kernels read. Pure.

A row is a run of queries and a list of pages. Decoding, verification of any length and pieces of
prompts are the same here: a row's queries are its new tokens, and under a causal kernel the last of
them sees all of its keys, the one before it all but one, and so on.

These are flashinfer's tables, of which its sources say: pages of row r are
`kv_indices[kv_indptr[r] : kv_indptr[r + 1]]`, all of them full but the last, which holds
`last_page_len[r]` keys; its queries are those from `qo_indptr[r]` to `qo_indptr[r + 1]`. A row may
have neither. Numbers are of 32 bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class PageTables:
    """R rows with Q queries and P pages."""

    qo_indptr: Int32  # [R + 1]
    kv_indptr: Int32  # [R + 1]
    kv_indices: Int32  # [P]
    last_page_len: Int32  # [R], 0 of a row without pages
    page_size: int

    @classmethod
    def of(
        cls,
        counts: Sequence[int] | NDArray[np.int64],
        lengths: Sequence[int] | NDArray[np.int64],
        tables: Sequence[NDArray[np.int64]],
        page_size: int,
    ) -> "PageTables":
        """Rows with `counts` queries and the first `lengths` keys of their `tables` of pages."""
        keys = np.asarray(lengths, dtype=np.int64)
        num_pages = -(-keys // page_size)
        used = [table[:count] for table, count in zip(tables, num_pages.tolist(), strict=True)]
        return cls(
            qo_indptr=_ends(np.asarray(counts, dtype=np.int64)),
            kv_indptr=_ends(num_pages),
            kv_indices=np.concatenate(used).astype(np.int32) if used else np.empty(0, np.int32),
            last_page_len=(keys - np.maximum(num_pages - 1, 0) * page_size).astype(np.int32),
            page_size=page_size,
        )

    @classmethod
    def of_batch(cls, batch: AttentionBatch, page_size: int) -> "PageTables":
        """One row for each of the batch's."""
        return cls.of(batch.num_tokens, batch.context_lens, batch.block_tables, page_size)

    @property
    def num_rows(self) -> int:
        return len(self.last_page_len)

    @property
    def num_queries(self) -> int:
        return int(self.qo_indptr[-1])

    @property
    def num_pages(self) -> int:
        return len(self.kv_indices)

    @property
    def is_decode(self) -> bool:
        """Whether every row has one query, which sees all of its keys."""
        return bool((np.diff(self.qo_indptr) == 1).all())

    def padded(self, num_rows: int, num_queries: int) -> "PageTables":
        """The same rows first, of so many rows and queries: what one captured shape has.

        Queries that pad read zeros of the null block, one a row where there are as many rows as
        they are and in the last row otherwise; rows that are left are empty. ValueError where the
        sizes hold less, or queries pad and no row does.
        """
        rows, queries = num_rows - self.num_rows, num_queries - self.num_queries
        if min(rows, queries) < 0 or (queries and not rows):
            raise ValueError(
                f"{self.num_rows} rows with {self.num_queries} queries do not fit {num_rows} rows "
                f"with {num_queries}"
            )
        counts = np.zeros(rows, dtype=np.int64)
        if queries == rows:
            counts[:] = 1
        elif rows:
            counts[-1] = queries
        pages = -(-counts // self.page_size)
        behind = PageTables.of(
            counts, counts, [np.full(each, NULL_BLOCK) for each in pages], self.page_size
        )
        return PageTables(
            qo_indptr=_joined(self.qo_indptr, behind.qo_indptr),
            kv_indptr=_joined(self.kv_indptr, behind.kv_indptr),
            kv_indices=np.concatenate([self.kv_indices, behind.kv_indices]),
            last_page_len=np.concatenate([self.last_page_len, behind.last_page_len]),
            page_size=self.page_size,
        )


def _ends(counts: NDArray[np.int64]) -> Int32:
    ends = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    return ends


def _joined(first: Int32, behind: Int32) -> Int32:
    return np.concatenate([first, first[-1] + behind[1:]])
