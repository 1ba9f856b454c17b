"""Chains over the pages of a drafter's contexts: `chain_tables` of one draft call after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specserve.backends.cuda.chain_tables import ChainTables, num_own_pages
from specserve.backends.cuda.graph_attention import GraphAttention
from specserve.drafters.context import BLOCK_SIZE, TorchContext
from specserve.models.attention import Attention, AttentionBatch


@dataclass(frozen=True)
class PagedAttention:
    """Of batches over the pages of one context."""

    context: TorchContext
    eager: Attention  # of any batch
    graphs: GraphAttention[Any]  # of what is captured


class PagedChains:
    """`plan`, `begin`, and then a batch for every pass."""

    def __init__(self, context: TorchContext) -> None:
        self._context = context
        self._tables: ChainTables | None = None
        self._num_passes = 0

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        pads: Sequence[int] | None = None,
    ) -> bool:
        """False where too few pages are free for chains to have any of their own."""
        self.forget()
        of_rows = self._context.rows
        own_pages = of_rows.unused(num_own_pages(lengths, num_passes, BLOCK_SIZE))
        if own_pages is None:
            return False
        tables = {row: of_rows.table(row) for row in set(rows)}
        self._tables = ChainTables.of(
            lengths,
            [tables[row] for row in rows],
            num_passes,
            own_pages=own_pages,
            page_size=BLOCK_SIZE,
            pads=pads,
        )
        return True

    def forget(self) -> None:
        """Whoever was planned last is computed otherwise."""
        self._tables, self._num_passes = None, 0

    @property
    def are_planned(self) -> bool:
        return self._tables is not None

    def begin(self) -> None:
        """Copy what chains begin behind; all that comes before them is there by now."""
        assert self._tables is not None
        self._context.cache.copy_blocks(self._tables.sources, self._tables.own_pages)

    def next_batch(self) -> AttentionBatch:
        """Of the next pass."""
        assert self._tables is not None
        self._num_passes += 1
        return self._tables.batch(self._num_passes - 1)
