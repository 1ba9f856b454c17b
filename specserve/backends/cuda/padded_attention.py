"""Attention of a batch padded to a shape: what a forward that is captured once can attend with.

Tokens stay as flat as they come: what pads N of them follows the last, and no row is padded. All
sizes are the shape's, and what tells one batch from another is in one tensor of integers, which is
filled before a forward and read by it on the device. So the operations of two batches of one shape
are the same, on the same memory.

Keys are copied out of the pool once a row, not once a token: up to TILE tokens of a row attend
together, as one tile of queries. Fused kernels compute tiles that are at least as high, so places
that no token has should add little; and nothing else of a forward knows of them. Where every row
brings one token, tiles have one place, which keeps masks small.

What pads the tokens repeats the batch's first one, with all that it attends to: its keys and values
are written again to the same place, and differ by rounding at most. What pads the tiles reads the
null block for nobody. Keys beyond a token's position are masked.
"""

from dataclasses import dataclass

import numpy as np
import torch

from specserve.backends.cuda.graphs import BUCKETS, bucket_of
from specserve.backends.torch.attention import KEY_TILE
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK, KVCache

TILE = 16  # tokens
# Of a row: a chain of 16 and its anchor fit. Prompts come in pieces of any length, of which few are
# alike.
MOST_ROW_TOKENS = 2 * TILE
MOST_PADDED_KEYS = 1 << 16  # which every layer copies out of the pool


@dataclass(frozen=True)
class PaddedShape:
    """N tokens in T tiles of `tile` places each, whose tokens are one row's; K keys a tile."""

    num_tokens: int
    num_tiles: int
    num_keys: int
    tile: int

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> "PaddedShape | None":
        """The least that holds `batch`, of few; None where padding costs more than it may save."""
        counts = batch.num_tokens
        num_tokens, longest = int(counts.sum()), int(counts.max())
        if num_tokens > BUCKETS[-1] or longest > MOST_ROW_TOKENS:
            return None
        tile = 1 if longest == 1 else TILE
        num_tiles = bucket_of(int((-(-counts // tile)).sum()))
        num_keys = padded_keys(int(batch.context_lens.max()), block_size)
        if num_tiles * num_keys > MOST_PADDED_KEYS:
            return None
        return cls(bucket_of(num_tokens), num_tiles, num_keys, tile)


class PaddedAttention:
    """See `Attention`; `fill` is its `plan`, and `begin` comes first of what is captured."""

    def __init__(
        self, cache: KVCache, *, num_heads: int, shape: PaddedShape, scale: float | None = None
    ) -> None:
        """`scale`: of scores; None: head_dim ** -0.5."""
        self.shape = shape
        self._scale = cache.head_dim**-0.5 if scale is None else scale
        self._cache = cache
        self._per_kv = num_heads // cache.num_kv_heads
        blocks = shape.num_tiles * shape.num_keys // cache.block_size
        sizes = [*[shape.num_tokens] * 4, shape.num_tiles * shape.tile, blocks]
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=cache.device)
        # Of every token, padding included: which one of the batch it is, its position, its slot and
        # its place in the tiles. Then the token of every place, and the blocks of every tile.
        self.sources, self.positions, self._slots, self._places, self._queries, self._blocks = (
            self._inputs.split(sizes)
        )
        self._columns = torch.arange(shape.num_keys, device=cache.device)
        self._num_tokens = 0

    def fill(self, batch: AttentionBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        shape, block_size = self.shape, self._cache.block_size
        counts, ends = batch.num_tokens, batch.context_lens
        num_tokens = int(counts.sum())
        num_tiles = -(-counts // shape.tile)
        first_tiles = np.cumsum(num_tiles) - num_tiles
        row = np.repeat(np.arange(len(counts)), counts)
        offsets = np.arange(num_tokens) - (np.cumsum(counts) - counts)[row]
        tiles = first_tiles[row] + offsets // shape.tile
        places = tiles * shape.tile + offsets % shape.tile
        blocks = np.full((shape.num_tiles, shape.num_keys // block_size), NULL_BLOCK)
        num_used = (-(-ends // block_size)).tolist()
        spans = zip(first_tiles.tolist(), num_tiles.tolist(), strict=True)
        for (first, count), table, used in zip(spans, batch.block_tables, num_used, strict=True):
            blocks[first : first + count, :used] = table[:used]
        positions = (ends - counts)[row] + offsets
        slots = blocks[tiles, positions // block_size] * block_size + positions % block_size
        queries = np.zeros(shape.num_tiles * shape.tile, dtype=np.int64)  # the first if it is none
        queries[places] = np.arange(num_tokens)
        sources = np.zeros(shape.num_tokens, dtype=np.int64)
        sources[:num_tokens] = np.arange(num_tokens)
        of_tokens = (own[sources] for own in (positions, slots, places))
        # Not pinned: the copy has left this memory when the call returns.
        packed = torch.from_numpy(np.concatenate([sources, *of_tokens, queries, blocks.ravel()]))
        self._inputs.copy_(packed, non_blocking=True)
        self._num_tokens = num_tokens

    def begin(self) -> None:
        """What all layers of one forward need."""
        shape, cache = self.shape, self._cache
        self._flat_slots = cache.flat_slots(self._slots)
        self._flat_blocks = cache.flat_blocks(self._blocks)
        hidden = self._columns > self.positions.index_select(0, self._queries)[:, None]
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device)
        mask = mask.masked_fill_(hidden, -torch.inf)
        mask = mask.view(shape.num_tiles, 1, shape.tile, 1, shape.num_keys)
        mask = mask.expand(-1, -1, -1, self._per_kv, -1)
        self._mask = mask.reshape(shape.num_tiles, 1, -1, shape.num_keys)

    def end(self) -> None:
        """Give back what `begin` made: a graph makes it again, and keeps nothing for it."""
        del self._flat_slots, self._flat_blocks, self._mask

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        shape, cache, heads = self.shape, self._cache, self._cache.num_kv_heads
        cache.write(layer_index, self._flat_slots, k, v)
        size = (2, len(self._flat_blocks), cache.block_size * cache.head_dim)
        gathered = torch.empty(size, dtype=cache.dtype, device=cache.device)
        cache.gather(layer_index, self._flat_blocks, gathered.unbind(0))
        by_tile = gathered.view(2, heads, shape.num_tiles, shape.num_keys, cache.head_dim)
        keys, values = by_tile.transpose(1, 2).unbind(0)
        # [T, kv_heads, tile, queries a kv_head, head_dim]
        queries = q.index_select(0, self._queries).view(
            shape.num_tiles, shape.tile, heads, self._per_kv, cache.head_dim
        )
        found = torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(1, 2).flatten(2, 3), keys, values, self._mask, scale=self._scale
        )
        found = found.unflatten(2, (shape.tile, self._per_kv)).transpose(1, 2)
        return found.reshape(-1, *q.shape[1:]).index_select(0, self._places)

    def unpadded(self, x: torch.Tensor) -> torch.Tensor:
        """Those rows of x [N, ...] that are tokens of the batch, in its order."""
        return x[: self._num_tokens]


class PaddedGraphs:
    """See `GraphAttention`: of one model's forwards, over its cache."""

    def __init__(self, cache: KVCache, *, num_heads: int, scale: float | None = None) -> None:
        """`scale`: as of `PaddedAttention`."""
        self._cache, self._num_heads, self._scale = cache, num_heads, scale

    def shape_of(self, batch: AttentionBatch) -> PaddedShape | None:
        return PaddedShape.of(batch, self._cache.block_size)

    def make(self, shape: PaddedShape) -> PaddedAttention:
        return PaddedAttention(
            self._cache, num_heads=self._num_heads, shape=shape, scale=self._scale
        )


def padded_keys(count: int, block_size: int) -> int:
    """So many tiles of keys that graphs have them, and then whole blocks."""
    keys = KEY_TILE * bucket_of(-(-count // KEY_TILE))
    return -(-keys // block_size) * block_size
