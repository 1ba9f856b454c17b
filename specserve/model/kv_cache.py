"""Paged key/value storage of one rank. Knows tensors and slots, not who owns a block.

Layout is head-major, `[num_kv_heads, num_blocks * block_size, head_dim]` a layer, so that gathering
the blocks of a row yields exactly what a batched matrix product wants, with one copy.
Block 0 is the null block: never written, all zeros; padding of block tables points at it.
"""

import numpy as np
import torch

NULL_BLOCK = 0


class KVCache:
    """Keys and values: two tensors [layers, num_kv_heads, num_blocks * block_size, head_dim]."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_kv_heads, num_blocks * block_size, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.num_layers = num_layers
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self._gathered = self.keys.new_empty(2, 0)
        # Index of head h, block 0 in the [heads * blocks] and [heads * slots] views.
        heads = torch.arange(num_kv_heads, device=device)
        self._head_blocks = heads[:, None] * num_blocks
        self._head_slots = heads[:, None] * (num_blocks * block_size)

    def flat_blocks(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Rows of `gather`'s view for `block_ids` [K], head-major: [num_kv_heads * K]."""
        return (self._head_blocks + block_ids).flatten()

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows of `write`'s view for `slots` [N] (block_id * block_size + offset): [heads * N]."""
        return (self._head_slots + slots).flatten()

    def write(
        self, layer: int, flat_slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store `keys`, `values` [N, num_kv_heads, head_dim] at `flat_slots` of one layer."""
        rows = (-1, self.head_dim)
        self.keys[layer].view(rows).index_copy_(0, flat_slots, keys.transpose(0, 1).reshape(rows))
        self.values[layer].view(rows).index_copy_(
            0, flat_slots, values.transpose(0, 1).reshape(rows)
        )

    def gather(
        self, layer: int, flat_blocks: torch.Tensor, room: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `flat_blocks`, each [num_kv_heads, K * block_size, head_dim].

        They lie in `room` [2, as many elements or more], or else are valid until the next call:
        every layer gathers into the same memory, because fresh pages cost more than the copy.
        """
        rows = (self.num_kv_heads * self.num_blocks, self.block_size * self.head_dim)
        shape = (len(flat_blocks), self.block_size * self.head_dim)
        if room is None:
            if self._gathered.shape[1] < shape[0] * shape[1]:
                self._gathered = self.keys.new_empty(2, shape[0] * shape[1])
            room = self._gathered
        keys, values = (buffer[: shape[0] * shape[1]].view(shape) for buffer in room)
        torch.index_select(self.keys[layer].view(rows), 0, flat_blocks, out=keys)
        torch.index_select(self.values[layer].view(rows), 0, flat_blocks, out=values)
        whole = (self.num_kv_heads, -1, self.head_dim)
        return keys.view(whole), values.view(whole)

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Erase blocks: a masked key has weight zero, but zero times NaN is NaN."""
        if not len(block_ids):
            return
        shape = (self.num_layers, self.num_kv_heads, self.num_blocks, -1)
        ids = torch.from_numpy(block_ids).to(self.device)
        self.keys.view(shape).index_fill_(2, ids, 0)
        self.values.view(shape).index_fill_(2, ids, 0)
