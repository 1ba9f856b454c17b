"""Attention of a batch padded to a shape: what a forward that is captured once can attend with.

All sizes are the shape's, and what tells one batch from another is in one tensor of integers, which
is filled before a forward and read by it on the device. So the operations of two batches of one
shape are the same, on the same memory.

What pads a batch repeats some token of it, with all that it attends to: its keys and values are
written twice to one place, and differ by rounding at most. Keys beyond a row's context are masked.
"""

from dataclasses import dataclass

import numpy as np
import torch

from specserve.backends.cuda.graphs import padded
from specserve.backends.torch.attention import KEY_TILE
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK, KVCache

MOST_TOKENS = 16  # of a row; prompts come in pieces of any length, of which few are alike
MOST_PADDED_TOKENS = 1024  # of a batch
MOST_PADDED_KEYS = 1 << 16  # which every layer copies out of the pool


@dataclass(frozen=True)
class PaddedShape:
    """R rows of T tokens that attend to K keys each."""

    num_rows: int
    num_tokens: int
    num_keys: int

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> "PaddedShape | None":
        """The least that holds `batch`, of few; None where padding costs more than it may save."""
        rows, tokens = padded(len(batch.num_tokens)), padded(int(batch.num_tokens.max()))
        keys = padded_keys(int(batch.context_lens.max()), block_size)
        may_pay = (
            tokens <= MOST_TOKENS
            and rows * tokens <= MOST_PADDED_TOKENS
            and rows * keys <= MOST_PADDED_KEYS
        )
        return cls(rows, tokens, keys) if may_pay else None


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
        tokens = shape.num_rows * shape.num_tokens
        blocks = shape.num_rows * shape.num_keys // cache.block_size
        self._inputs = torch.zeros(4 * tokens + blocks, dtype=torch.int64, device=cache.device)
        # Of every padded token the one that it is in the batch, its position and its slot; which
        # padded tokens are the batch's own; the blocks of all rows.
        self.sources, self.positions, self._slots, self._outputs, self._blocks = self._inputs.split(
            [tokens] * 4 + [blocks]
        )
        self._columns = torch.arange(shape.num_keys, device=cache.device)
        self._num_outputs = 0

    def fill(self, batch: AttentionBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        shape, block_size = self.shape, self._cache.block_size
        num_rows = len(batch.num_tokens)
        row = np.arange(shape.num_rows)
        row[num_rows:] = 0
        offsets = np.arange(shape.num_tokens)
        counts, ends = batch.num_tokens[row, None], batch.context_lens[row, None]
        firsts = (np.cumsum(batch.num_tokens) - batch.num_tokens)[row, None]
        is_real = offsets < counts
        steps = np.where(is_real, offsets, 0)
        sources, positions = firsts + steps, ends - counts + steps
        blocks = np.full((shape.num_rows, shape.num_keys // block_size), NULL_BLOCK)
        num_used = (-(-batch.context_lens // block_size)).tolist()
        for own, table, used in zip(blocks, batch.block_tables, num_used, strict=False):
            own[:used] = table[:used]
        blocks[num_rows:] = blocks[0]
        slots = np.take_along_axis(blocks, positions // block_size, axis=1) * block_size
        slots += positions % block_size
        outputs = np.zeros(sources.size, dtype=np.int64)
        places = np.flatnonzero(is_real[:num_rows])
        outputs[: len(places)] = places
        parts = (sources, positions, slots, outputs, blocks)
        # Not pinned: the copy has left this memory when the call returns.
        packed = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
        self._inputs.copy_(packed, non_blocking=True)
        self._num_outputs = len(places)

    def begin(self) -> None:
        """What all layers of one forward need."""
        shape, cache = self.shape, self._cache
        self._flat_slots = cache.flat_slots(self._slots)
        self._flat_blocks = cache.flat_blocks(self._blocks)
        hidden = self._columns > self.positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device)
        mask = mask.masked_fill_(hidden, -torch.inf)
        mask = mask.view(shape.num_rows, 1, shape.num_tokens, 1, shape.num_keys)
        mask = mask.expand(-1, -1, -1, self._per_kv, -1)
        self._mask = mask.reshape(shape.num_rows, 1, -1, shape.num_keys)

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
        by_row = gathered.view(2, heads, shape.num_rows, shape.num_keys, cache.head_dim)
        keys, values = by_row.transpose(1, 2).unbind(0)
        found = torch.nn.functional.scaled_dot_product_attention(
            self._by_head(q, heads, self._per_kv).flatten(2, 3),
            keys,
            values,
            self._mask,
            scale=self._scale,
        )
        found = found.unflatten(2, (shape.num_tokens, self._per_kv)).transpose(1, 2)
        return found.reshape(q.shape)

    def _by_head(self, q: torch.Tensor, heads: int, per_kv: int) -> torch.Tensor:
        """[R * T, heads, head_dim] -> [R, kv_heads, T, queries a kv_head, head_dim]"""
        shape = self.shape
        by_token = q.reshape(shape.num_rows, shape.num_tokens, heads, per_kv, -1)
        return by_token.transpose(1, 2)

    def unpadded(self, x: torch.Tensor) -> torch.Tensor:
        """Those rows of x [R * T, ...] that are tokens of the batch, in its order."""
        if self._num_outputs == len(x):
            return x
        return x.index_select(0, self._outputs[: self._num_outputs])


def padded_keys(count: int, block_size: int) -> int:
    """So many tiles of keys that they are a power of two, and then whole blocks."""
    keys = KEY_TILE * padded(-(-count // KEY_TILE))
    return -(-keys // block_size) * block_size
