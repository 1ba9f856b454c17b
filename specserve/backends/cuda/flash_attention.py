"""Attention of a target's forwards where keys and values are kept, by flashinfer's kernels.

Nothing is copied out of the pool: a forward's batch becomes page tables on the host, once, and
every layer runs one kernel over them.
"""

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda import flash_shape
from specserve.backends.cuda.flash import WORKSPACE_BYTES, FixedSize, Flash, Heads, Kernel
from specserve.backends.cuda.flash_shape import FlashShape, graph_bytes
from specserve.backends.cuda.page_tables import PageTables
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import KVCache


class FlashAttention:
    """See `Attention`: of batches of any shape, not captured."""

    def __init__(self, flash: Flash, cache: KVCache, heads: Heads) -> None:
        self._cache = cache
        self._pages = [cache.pages(layer) for layer in range(cache.num_layers)]
        self._decode, self._causal = flash.decode(heads), flash.causal(heads)
        self._kernel: Kernel = self._causal

    def plan(self, batch: AttentionBatch) -> None:
        tables = PageTables.of_batch(batch, self._cache.block_size)
        self._kernel = self._decode if tables.is_decode else self._causal
        self._kernel.plan(tables)
        slots = torch.from_numpy(batch.slots(self._cache.block_size))
        self._flat_slots = self._cache.flat_slots(slots.to(self._cache.device))

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._cache.write(layer_index, self._flat_slots, k, v)
        return self._kernel.run(q, self._pages[layer_index])


class FlashGraphs:
    """What captured forwards of one model attend with: see `GraphAttention`."""

    def __init__(self, flash: Flash, cache: KVCache, heads: Heads) -> None:
        """The last block of `cache` is spare: what pads a batch is written there."""
        self._flash, self._cache, self._heads = flash, cache, heads
        self._indices = torch.zeros(flash_shape.MOST_PAGES, dtype=torch.int32, device=flash.device)

    def shape_of(self, batch: AttentionBatch) -> FlashShape | None:
        shape = FlashShape.of(batch, self._cache.block_size)
        if shape is None:
            return None
        size = graph_bytes(
            shape.num_tokens,
            shape.num_rows,
            num_heads=self._heads.num_heads,
            num_kv_heads=self._heads.num_kv_heads,
            head_dim=self._heads.head_dim,
        )
        return shape if size <= WORKSPACE_BYTES else None

    def make(self, shape: FlashShape) -> "CapturedFlash":
        fixed = FixedSize(shape.num_rows, self._indices)
        kinds = self._flash.decode if shape.is_decode else self._flash.causal
        return CapturedFlash(self._cache, shape, kinds(self._heads, fixed))


class CapturedFlash:
    """Attention of batches of one shape; `fill` comes before what is captured, `begin` first in it.

    What pads a batch's tokens repeats its first one at its position, reads zeros, and writes to a
    spare block that nobody reads.
    """

    def __init__(self, cache: KVCache, shape: FlashShape, kernel: Kernel) -> None:
        self.shape = shape
        self._cache, self._kernel = cache, kernel
        self._pages = [cache.pages(layer) for layer in range(cache.num_layers)]
        self._inputs = torch.zeros(3, shape.num_tokens, dtype=torch.int64, device=cache.device)
        # Of every token, padding included: which one of the batch it is, its position and its slot.
        self.sources, self.positions, self._slots = self._inputs.unbind(0)
        self._num_tokens = 0

    def fill(self, batch: AttentionBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        shape, cache = self.shape, self._cache
        tables = PageTables.of_batch(batch, cache.block_size)
        self._kernel.plan(tables.padded(shape.num_rows, shape.num_tokens))
        num_tokens = tables.num_queries
        packed = torch.zeros(3, shape.num_tokens, dtype=torch.int64)
        sources, positions, slots = packed.numpy()
        sources[:num_tokens] = np.arange(num_tokens)
        positions[:num_tokens] = batch.positions()
        positions[num_tokens:] = positions[0]
        slots[:num_tokens] = batch.slots(cache.block_size)
        slots[num_tokens:] = cache.num_blocks * cache.block_size
        # Not pinned: the copy has left this memory when the call returns.
        self._inputs.copy_(packed, non_blocking=True)
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """What all layers of one forward need."""
        self._flat_slots = self._cache.flat_slots(self._slots)

    def end(self) -> None:
        """Give back what `begin` made: a graph makes it again, and keeps nothing for it."""
        del self._flat_slots

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._cache.write(layer_index, self._flat_slots, k, v)
        return self._kernel.run(q, self._pages[layer_index])

    def unpadded(self, x: Tensor) -> Tensor:
        """Those rows of x [N, ...] that are tokens of the batch, in its order."""
        return x[: self._num_tokens]
