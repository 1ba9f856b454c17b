"""Attention of draft blocks padded to a shape, for passes that are captured: see `graphs`.

Every block is a row of its own, so that branches of one request gather its context once each: that
is memory's time, of which there is more than of kernels. What tells one batch from another is in
one tensor of integers, beside the blocks' own tokens. A block that pads stands where the first one
does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda.graphs import padded
from specserve.backends.cuda.padded_attention import (
    MOST_PADDED_KEYS,
    MOST_ROW_TOKENS,
    padded_keys,
)
from specserve.drafters.context import BLOCK_SIZE, TorchContext
from specserve.models.kv_cache import NULL_BLOCK, KVCache

MOST_PADDED_TOKENS = 1024  # of a batch
_ALIGNED = 8  # keys: what fused kernels ask of a mask


@dataclass(frozen=True)
class BlockBatch:
    """B blocks behind the first `lengths` positions of their rows and the tokens of their gaps."""

    rows: Sequence[int]
    lengths: Sequence[int]
    gap_ids: Sequence[Sequence[int]]  # of every block
    token_ids: Tensor  # [B, S] on the device


class BlockShape(NamedTuple):
    """B blocks of S tokens behind gaps of G, over contexts of K positions."""

    num_blocks: int
    size: int
    gap: int
    num_keys: int

    @classmethod
    def of(cls, batch: BlockBatch, context: TorchContext, min_gap: int) -> "BlockShape | None":
        """The least that holds `batch`, of few; None where padding costs more than it may save."""
        blocks, size = padded(len(batch.rows)), batch.token_ids.shape[1]
        gap = max(min_gap, *map(len, batch.gap_ids))
        gap = padded(gap) if gap else 0
        pages = max(len(context.rows.table(row)) for row in set(batch.rows))
        keys = padded_keys(pages * BLOCK_SIZE, BLOCK_SIZE)
        may_pay = (
            gap + size <= MOST_ROW_TOKENS
            and blocks * (gap + size) <= MOST_PADDED_TOKENS
            and blocks * keys <= MOST_PADDED_KEYS
        )
        return cls(blocks, size, gap, keys) if may_pay else None


class PaddedBlocks:
    """`run` in every layer of a captured pass, behind `begin`; `fill` before it."""

    def __init__(
        self, context: TorchContext, shape: BlockShape, *, num_heads: int, scale: float
    ) -> None:
        self._context, self._scale = context, scale
        cache: KVCache = context.cache
        self._cache = cache
        self._per_kv = num_heads // cache.num_kv_heads
        self.shape = shape
        blocks, self._width = shape.num_blocks, shape.gap + shape.size  # T
        sizes = [blocks * self._width, blocks, blocks, blocks * shape.gap]
        sizes.append(blocks * shape.num_keys // BLOCK_SIZE)
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=cache.device)
        positions, self._seen, self._pads, gap_ids, self._pages = self._inputs.split(sizes)
        self.positions = positions  # [B * T]
        self._gap_ids = gap_ids.view(blocks, shape.gap)
        self._own_ids = torch.zeros(blocks, shape.size, dtype=torch.int64, device=cache.device)
        self._columns = torch.arange(shape.num_keys, device=cache.device)
        self._places = torch.arange(self._width, device=cache.device)
        self._itself = torch.eye(self._width, dtype=torch.bool, device=cache.device)
        aligned = -self._width % _ALIGNED
        room = (blocks, cache.num_kv_heads, aligned, cache.head_dim)
        self._no_entries = torch.zeros(room, dtype=cache.dtype, device=cache.device)

    def fill(self, batch: BlockBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        shape, num_blocks = self.shape, len(batch.rows)
        block = np.arange(shape.num_blocks)
        block[num_blocks:] = 0
        lengths = np.array(batch.lengths, dtype=np.int64)
        gaps = np.array([len(ids) for ids in batch.gap_ids], dtype=np.int64)
        # Behind a gap that is shorter than others, places before it are padding.
        offsets = np.arange(self._width) - shape.gap
        positions = np.maximum((lengths + gaps)[:, None] + offsets, 0)
        gap_ids = np.zeros((num_blocks, shape.gap), dtype=np.int64)
        for own, ids in zip(gap_ids, batch.gap_ids, strict=True):
            own[shape.gap - len(ids) :] = ids
        pages = np.full((num_blocks, shape.num_keys // BLOCK_SIZE), NULL_BLOCK)
        tables = {row: self._context.rows.table(row) for row in set(batch.rows)}
        for own, row in zip(pages, batch.rows, strict=True):
            own[: len(tables[row])] = tables[row]
        parts = (positions, lengths, shape.gap - gaps, gap_ids, pages)
        packed = torch.from_numpy(np.concatenate([part[block].ravel() for part in parts]))
        # Not pinned: the copy has left this memory when the call returns.
        self._inputs.copy_(packed, non_blocking=True)
        # What is behind the blocks are those of some batch before, computed for nobody.
        self._own_ids[:num_blocks].copy_(batch.token_ids)

    def begin(self) -> Tensor:
        """What all layers of one pass need; its token ids [B * T]."""
        shape, cache = self.shape, self._cache
        self._flat_pages = cache.flat_blocks(self._pages)
        places = self._places
        # Tokens of a gap see each other causally and no block, those of a block see all of both.
        sees = (places <= places[:, None]) | (places >= shape.gap)[:, None]
        sees = (sees & (places >= self._pads[:, None, None])) | self._itself
        context = (self._columns < self._seen[:, None])[:, None]
        hidden = ~torch.cat([context.expand(-1, self._width, -1), sees], dim=2)
        hidden = torch.nn.functional.pad(hidden, (0, self._no_entries.shape[2]), value=True)
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device)
        mask = mask.masked_fill_(hidden, -torch.inf)[:, None, :, None]
        mask = mask.expand(-1, -1, -1, self._per_kv, -1)
        self._mask = mask.reshape(shape.num_blocks, 1, -1, mask.shape[-1])
        return torch.cat([self._gap_ids, self._own_ids], dim=1).flatten()

    def end(self) -> None:
        """Give back what `begin` made: a graph makes it again, and keeps nothing for it."""
        del self._flat_pages, self._mask

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B * T, heads, head_dim], k and v [B * T, kv_heads, head_dim]: like q."""
        cache, blocks, heads = self._cache, self.shape.num_blocks, self._cache.num_kv_heads
        size = (2, len(self._flat_pages), BLOCK_SIZE * cache.head_dim)
        gathered = torch.empty(size, dtype=cache.dtype, device=cache.device)
        cache.gather(layer_index, self._flat_pages, gathered.unbind(0))
        by_block = gathered.view(2, heads, blocks, -1, cache.head_dim).transpose(1, 2)
        keys, values = (
            torch.cat(
                [kept, own.unflatten(0, (blocks, -1)).transpose(1, 2), self._no_entries], dim=2
            )
            for kept, own in zip(by_block.unbind(0), (k, v), strict=True)
        )
        by_head = q.reshape(blocks, self._width, heads, self._per_kv, -1).transpose(1, 2)
        found = torch.nn.functional.scaled_dot_product_attention(
            by_head.flatten(2, 3), keys, values, self._mask, scale=self._scale
        )
        found = found.unflatten(2, (self._width, self._per_kv)).transpose(1, 2)
        return found.reshape(q.shape)

    def of_blocks(self, x: Tensor) -> Tensor:
        """x [B * T, H] without gaps: [B, S, H]."""
        return x.view(self.shape.num_blocks, -1, x.shape[1])[:, self.shape.gap :]


class PaddedBlockGraphs:
    """See `BlockGraphs`: of one drafter's passes, over its contexts."""

    def __init__(self, context: TorchContext, *, num_heads: int, scale: float) -> None:
        self._context, self._num_heads, self._scale = context, num_heads, scale

    def shape_of(self, batch: BlockBatch, min_gap: int) -> BlockShape | None:
        return BlockShape.of(batch, self._context, min_gap)

    def make(self, shape: BlockShape) -> PaddedBlocks:
        return PaddedBlocks(self._context, shape, num_heads=self._num_heads, scale=self._scale)
