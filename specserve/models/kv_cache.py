"""Paged key/value storage of one rank. Knows tensors and slots, not who owns a block.

`KVCache` is head-major, `[num_kv_heads, num_blocks * block_size, head_dim]` a layer, so that
gathering the blocks of a row yields what a batched matrix product wants, with one copy.
Block 0 is the null block: never written, all zeros; padding of block tables points at it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

NULL_BLOCK = 0


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """Of one rank's pool, the null block included."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int  # tokens
    # Behind all others, owned by nobody: for entries that no later forward asks for.
    num_spare_blocks: int = 0


class KVCache:
    """Keys and values: two tensors [layers, num_kv_heads, num_blocks * block_size, head_dim].

    Spare blocks, numbered from `num_blocks` on, are in these tensors too.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kept_dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype`: what comes in and is gathered; `kept_dtype`: what it is rounded to meanwhile."""
        self.num_layers, self.num_kv_heads = shape.num_layers, shape.num_kv_heads
        self.num_blocks, self.block_size = shape.num_blocks, shape.block_size
        self.head_dim = shape.head_dim
        self.dtype, self.device = dtype, device
        self._num_all_blocks = self.num_blocks + shape.num_spare_blocks
        num_slots = self._num_all_blocks * self.block_size
        sizes = (self.num_layers, self.num_kv_heads, num_slots, self.head_dim)
        self.keys = torch.zeros(sizes, dtype=kept_dtype or dtype, device=device)
        self.values = torch.zeros(sizes, dtype=kept_dtype or dtype, device=device)
        self.kept_dtype = self.keys.dtype
        self._gathered = torch.empty(0, dtype=dtype, device=device)
        # A layer's keys and values by slot and by block: a view costs what a small copy does.
        by_slot = (self.num_layers, self.num_kv_heads * num_slots, self.head_dim)
        num_heads_blocks = self.num_kv_heads * self._num_all_blocks
        by_block = (self.num_layers, num_heads_blocks, self.block_size * self.head_dim)
        self._slots = _by_layer(self.keys, self.values, by_slot)
        self._blocks = _by_layer(self.keys, self.values, by_block)
        # Index of head h, block 0 in the [heads * blocks] and [heads * slots] views.
        heads = torch.arange(self.num_kv_heads, device=device)
        self._head_blocks = heads[:, None] * self._num_all_blocks
        self._head_slots = heads * num_slots

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values by block: views [blocks, num_kv_heads, block_size, head_dim] each.

        Not contiguous: a head's blocks lie behind each other.
        """
        shape = (self.num_kv_heads, self._num_all_blocks, self.block_size, self.head_dim)
        keys, values = (x[layer].view(shape).transpose(0, 1) for x in (self.keys, self.values))
        return keys, values

    def flat_blocks(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Rows of `gather`'s view for `block_ids` [K], head-major: [num_kv_heads * K]."""
        return (self._head_blocks + block_ids).flatten()

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows of `write`'s view for `slots` [N] (block_id * block_size + offset): [N * heads]."""
        return (slots[:, None] + self._head_slots).flatten()

    def write(
        self, layer: int, flat_slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store `keys`, `values` [N, num_kv_heads, head_dim] at `flat_slots` of one layer."""
        for rows, entries in zip(self._slots[layer], (keys, values), strict=True):
            rows.index_copy_(0, flat_slots, entries.reshape(-1, self.head_dim).to(rows.dtype))

    def write_layers(self, slots: np.ndarray, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store entries of all layers: [N, layers, num_kv_heads, head_dim] each."""
        flat_slots = self.flat_slots(torch.from_numpy(slots).to(self.device))
        for layer, (k, v) in enumerate(zip(keys.unbind(1), values.unbind(1), strict=True)):
            self.write(layer, flat_slots, k, v)

    def room(self, num_flat_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where `gather` may put keys and values of that many, valid until the next `gather`.

        Always the same memory, because fresh pages cost more than the copy.
        """
        shape = (2, num_flat_blocks, self.block_size * self.head_dim)
        if self._gathered.numel() < math.prod(shape):
            self._gathered = self._gathered.new_empty(math.prod(shape))
        keys, values = self._gathered[: math.prod(shape)].view(shape)
        return keys, values

    def gather(self, layer: int, flat_blocks: torch.Tensor, room: Sequence[torch.Tensor]) -> None:
        """Copy keys and values of `flat_blocks` [F] to `room`, two of [F, block_size * head_dim].

        In the same memory, [num_kv_heads, F / num_kv_heads * block_size, head_dim] of each.
        """
        for blocks, out in zip(self._blocks[layer], room, strict=True):
            if blocks.dtype == out.dtype:
                torch.index_select(blocks, 0, flat_blocks, out=out)
            else:
                out.copy_(blocks.index_select(0, flat_blocks))

    def read(self, layer: int, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `block_ids`, in order: [num_kv_heads, positions, head_dim] each."""
        flat_blocks = self.flat_blocks(block_ids.to(self.device))
        room = self.room(len(flat_blocks))
        self.gather(layer, flat_blocks, room)
        keys, values = (x.view(self.num_kv_heads, -1, self.head_dim).clone() for x in room)
        return keys, values

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Erase blocks: a masked key has weight zero, but zero times NaN is NaN."""
        if not len(block_ids):
            return
        shape = (self.num_layers, self.num_kv_heads, self._num_all_blocks, -1)
        ids = torch.from_numpy(block_ids).to(self.device)
        self.keys.view(shape).index_fill_(2, ids, 0)
        self.values.view(shape).index_fill_(2, ids, 0)

    def copy_blocks(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """In all layers, one after the other; no block is a source and a target, int64 each."""
        if not len(targets):
            return
        shape = (self.num_layers, self.num_kv_heads, self._num_all_blocks, -1)
        # Not pinned: the copy has left this memory when the call returns.
        ids = torch.from_numpy(np.stack([sources, targets]))
        old, new = ids.to(self.device, non_blocking=True).unbind(0)
        for kept in (self.keys.view(shape), self.values.view(shape)):
            kept.index_copy_(2, new, kept.index_select(2, old))


def _by_layer(
    keys: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(keys.view(shape).unbind(0), values.view(shape).unbind(0), strict=True))
