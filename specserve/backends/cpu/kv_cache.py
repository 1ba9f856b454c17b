"""Paged storage of keys and values as compiled attention reads it: block by block, in place."""

import math

import numpy as np
import torch

from specserve.backends.cpu.large_pages import large_zeros
from specserve.models.kv_cache import CacheShape

_WIDEST_TILE = 16  # keys


class TiledKVCache:
    """Keys lie so that some of them at once are a vector.

    keys [layers, blocks, num_kv_heads, tiles of a block * head_dim, tile], values [layers, blocks,
    num_kv_heads, block_size, head_dim]; slots are block_id * block_size + offset.

    All heads of a block lie together, because blocks of a row lie anywhere once a service has run
    for a while, each in other pages of the system. Where every head had a place of its own, it met
    pages of its own: sixteen rows of 300 tokens took a quarter to a half longer.
    """

    def __init__(self, shape: CacheShape, *, dtype: torch.dtype = torch.float32) -> None:
        """`dtype`: float32, or bfloat16, to which whatever is kept is rounded.

        Memory is taken from the system where something is kept, not before.
        """
        self.num_layers, self.num_kv_heads = shape.num_layers, shape.num_kv_heads
        self.num_blocks, self.block_size = shape.num_blocks, shape.block_size
        self.head_dim = shape.head_dim
        self.tile = math.gcd(self.block_size, _WIDEST_TILE)
        heads = self.num_layers, self.num_blocks, self.num_kv_heads
        num_tiles = self.block_size // self.tile
        self.keys = large_zeros((*heads, num_tiles * self.head_dim, self.tile), dtype)
        self.values = large_zeros((*heads, self.block_size, self.head_dim), dtype)
        self.kept_dtype = dtype
        self._tiles = self.keys.view(*heads, num_tiles, self.head_dim, self.tile)

    def as_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """Views of keys and values, whose last dimension is as many times longer."""
        return self.keys.view(torch.uint8).numpy(), self.values.view(torch.uint8).numpy()

    def read(self, layer: int, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `block_ids`, in order: [num_kv_heads, positions, head_dim] each."""
        heads, dim = self.num_kv_heads, self.head_dim
        tiles = self._tiles[layer, block_ids].permute(1, 0, 2, 4, 3).float()
        values = self.values[layer, block_ids].transpose(0, 1).float()
        return tiles.reshape(heads, -1, dim), values.reshape(heads, -1, dim)

    def write_layers(self, slots: np.ndarray, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store entries of all layers: [N, layers, num_kv_heads, head_dim] each."""
        blocks, places = np.divmod(slots, self.block_size)
        tiles, columns = np.divmod(places, self.tile)
        at, beside = self._bits(self._tiles), self._bits(self.values)
        at[:, blocks, :, tiles, :, columns] = self._bits(keys.to(self.keys.dtype))
        beside[:, blocks, :, places] = self._bits(values.to(self.keys.dtype))

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Nothing to do: no slot is read before it was written."""

    @staticmethod
    def _bits(numbers: torch.Tensor) -> np.ndarray:
        """As numpy knows them: it has no bfloat16."""
        is_known = numbers.dtype == torch.float32
        return (numbers if is_known else numbers.view(torch.int16)).numpy()
