"""Attention of draft blocks where their contexts are kept, by flashinfer's kernels.

Blocks and gaps are one list of tokens, of any lengths. Their own keys and values go to spare pages
of the context's pool, which no row has and the next pass writes again; what they see of contexts
and what of themselves are two kernels a layer, whose results are merged (`block_tables`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda import flash_shape
from specserve.backends.cuda.block_tables import BlockTables, num_own_pages, num_trunks
from specserve.backends.cuda.flash import WORKSPACE_BYTES, FixedSize, Flash, Heads, Kernel
from specserve.backends.cuda.flash_shape import graph_bytes, padded_rows
from specserve.backends.cuda.graphs import BUCKETS, bucket_of
from specserve.backends.cuda.padded_attention import MOST_ROW_TOKENS
from specserve.backends.cuda.padded_blocks import BlockBatch
from specserve.drafters.context import BLOCK_SIZE, TorchContext

SPARE_PAGES = 257  # 256 blocks of up to a page, and one for tokens that pad


class FlashBlockShape(NamedTuple):
    """N tokens, of B blocks of S tokens and their gaps, in so many rows of each level."""

    num_tokens: int
    num_blocks: int
    size: int
    num_trunks: int
    num_own_rows: int


class FlashBlockGraphs:
    """What captured passes of one drafter attend with: see `BlockGraphs`."""

    def __init__(self, flash: Flash, context: TorchContext, heads: Heads) -> None:
        """`context`: with `SPARE_PAGES`."""
        self._flash, self._context, self._heads = flash, context, heads
        # Of trunks and own keys, which are planned together.
        size = (2, flash_shape.MOST_PAGES)
        self._indices = torch.zeros(size, dtype=torch.int32, device=flash.device).unbind(0)

    def shape_of(self, batch: BlockBatch, min_gap: int) -> FlashBlockShape | None:
        """The least that holds `batch`; None where none does. Gaps are as long as they are."""
        num_blocks, size = batch.token_ids.shape
        gaps = [len(ids) for ids in batch.gap_ids]
        num_tokens = sum(gaps) + num_blocks * size
        pages = {row: len(self._context.rows.table(row)) for row in set(batch.rows)}
        num_pages = sum(pages[row] for row in batch.rows) + BUCKETS[-1]
        if (
            num_tokens > BUCKETS[-1]
            or max(gaps) + size > MOST_ROW_TOKENS
            or num_pages > flash_shape.MOST_PAGES
            or num_own_pages(gaps, size, BLOCK_SIZE) >= SPARE_PAGES
        ):
            return None
        bucket = bucket_of(num_tokens)
        shape = FlashBlockShape(
            num_tokens=bucket,
            num_blocks=bucket_of(num_blocks),
            size=size,
            num_trunks=padded_rows(num_trunks(batch.rows, batch.lengths), bucket),
            num_own_rows=padded_rows(sum(gaps) + num_blocks, bucket),
        )
        return shape if self._bytes(shape) <= WORKSPACE_BYTES else None

    def _bytes(self, shape: FlashBlockShape) -> int:
        heads = self._heads
        return max(
            graph_bytes(
                shape.num_tokens,
                num_rows,
                num_heads=heads.num_heads,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.head_dim,
            )
            for num_rows in (shape.num_trunks, shape.num_own_rows)
        )

    def make(self, shape: FlashBlockShape) -> "FlashBlocks":
        rows = (shape.num_trunks, shape.num_own_rows)
        kernels = [
            self._flash.whole(self._heads, FixedSize(num_rows, indices))
            for num_rows, indices in zip(rows, self._indices, strict=True)
        ]
        return FlashBlocks(self._flash, self._context, shape, kernels)


class FlashBlocks:
    """See `ShapedBlocks`. What pads the tokens repeats the first block's first one, for nobody."""

    def __init__(
        self,
        flash: Flash,
        context: TorchContext,
        shape: FlashBlockShape,
        kernels: Sequence[Kernel],
    ) -> None:
        """`kernels`: of trunks, and of own keys."""
        self.shape = shape
        self._flash, self._context, self._cache = flash, context, context.cache
        self._trunks, self._own = kernels
        self._pages = [self._cache.pages(layer) for layer in range(self._cache.num_layers)]
        sizes = [shape.num_tokens] * 4 + [shape.num_blocks * shape.size]
        device = self._cache.device
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        # Of every token, padding included: which of the ids it has, its position, its slot, and its
        # id if it is a gap's. Then which tokens are blocks'.
        self._sources, self.positions, self._slots, self._gap_ids, self._own_tokens = (
            self._inputs.split(sizes)
        )
        size = (shape.num_blocks, shape.size)
        self._own_ids = torch.zeros(size, dtype=torch.int64, device=device)

    def fill(self, batch: BlockBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        shape, cache, num_blocks = self.shape, self._cache, len(batch.rows)
        tables = {row: self._context.rows.table(row) for row in set(batch.rows)}
        laid_out = BlockTables.of(
            batch.rows,
            batch.lengths,
            [len(ids) for ids in batch.gap_ids],
            shape.size,
            tables=[tables[row] for row in batch.rows],
            first_page=cache.num_blocks,
            page_size=BLOCK_SIZE,
        )
        self._trunks.plan(laid_out.trunks.padded(shape.num_trunks, shape.num_tokens))
        self._own.plan(laid_out.own.padded(shape.num_own_rows, shape.num_tokens))
        packed = torch.zeros_like(self._inputs, device="cpu")
        parts = packed.numpy()
        sources, positions, slots, gap_ids = parts[: 4 * shape.num_tokens].reshape(4, -1)
        own, count = laid_out.own_tokens, len(laid_out.positions)
        sources[:] = np.arange(shape.num_tokens)
        sources[own] = shape.num_tokens + np.arange(len(own))
        sources[count:] = shape.num_tokens
        positions[:count] = laid_out.positions
        positions[count:] = batch.lengths[0]
        slots[:count] = laid_out.slots
        slots[count:] = (cache.num_blocks + SPARE_PAGES - 1) * BLOCK_SIZE
        is_gap = np.ones(count, dtype=bool)
        is_gap[own] = False
        gap_ids[:count][is_gap] = list(chain.from_iterable(batch.gap_ids))
        parts[4 * shape.num_tokens :][: len(own)] = own
        # Not pinned: the copy has left this memory when the call returns.
        self._inputs.copy_(packed, non_blocking=True)
        # What is behind the blocks are those of some batch before, computed for nobody.
        self._own_ids[:num_blocks].copy_(batch.token_ids)

    def begin(self) -> Tensor:
        """What all layers of one pass need; its token ids [N]."""
        self._flat_slots = self._cache.flat_slots(self._slots)
        ids = torch.cat([self._gap_ids, self._own_ids.flatten()])
        return ids.index_select(0, self._sources)

    def end(self) -> None:
        """Give back what `begin` made: a graph makes it again, and keeps nothing for it."""
        del self._flat_slots

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, heads, head_dim], k and v [N, kv_heads, head_dim]: like q."""
        self._cache.write(layer_index, self._flat_slots, k, v)
        pages = self._pages[layer_index]
        found, sums = self._own.run_with_sums(q, pages)
        self._flash.merge(found, sums, *self._trunks.run_with_sums(q, pages))
        return found

    def of_blocks(self, x: Tensor) -> Tensor:
        """Those rows of x [N, H] that are blocks' tokens: [B, S, H]."""
        return x.index_select(0, self._own_tokens).view(self.shape.num_blocks, -1, x.shape[1])
