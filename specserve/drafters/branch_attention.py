"""Attention of draft blocks over their rows' contexts, and of pending tokens that come first.

One pass carries, row by row, pending tokens (each becomes an entry of its row's context and sees
what is before it) and then blocks behind some prefix of that context, whose tokens see each other
in any order. All of it is one fused product a layer: what a token sees is a mask made once a pass.
Knows no model: queries, keys and values come in ready to use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.drafters.context import TorchContext
from specserve.drafters.row_layout import RowLayout, pages_of, places_within


@dataclass(frozen=True)
class Entering:
    """Pending tokens whose places in the context are reserved: N = sum(counts)."""

    rows: Sequence[int]  # distinct
    starts: Sequence[int]
    counts: Sequence[int]
    token_ids: Sequence[int]  # [N], row by row

    def each(self, of_rows: Sequence[int]) -> NDArray[np.int64]:
        """What is given by row, for every token: [N]."""
        return np.array(of_rows, dtype=np.int64).repeat(np.array(self.counts))

    def ends(self) -> NDArray[np.int64]:
        """Positions that each token sees, its own included: [N]."""
        return self.each(self.starts) + places_within(np.array(self.counts)) + 1

    def flat_slots(self, context: TorchContext) -> Tensor:
        """Where their entries are kept, for `KVCache.write`."""
        spans = zip(self.rows, self.starts, self.counts, strict=True)
        slots = [context.rows.slots(row, start, start + count) for row, start, count in spans]
        flat = torch.from_numpy(np.concatenate(slots)).to(context.cache.device)
        return context.cache.flat_slots(flat)


@dataclass(frozen=True)
class Blocks:
    """B blocks of T tokens, behind the first `lengths` positions of their rows."""

    rows: Sequence[int]  # [B], branches of one request share theirs
    lengths: Sequence[int]  # [B]
    size: int  # T
    mask: Tensor | None = None  # [B, T, T] added to scores of queries against their own block


class BranchAttention:
    """Call `plan` once a pass, then `run` in every layer."""

    def __init__(self, context: TorchContext, *, num_heads: int, scale: float) -> None:
        self._context = context
        self._scale = scale
        self._kv_heads = context.cache.num_kv_heads
        self._per_kv = num_heads // self._kv_heads

    def plan(self, blocks: Blocks, entering: Entering | None = None) -> None:
        """The flattened pass is the entering tokens, then the blocks: N + B * T tokens."""
        self._num_entering = 0 if entering is None else len(entering.token_ids)
        self._flat_slots = None if entering is None else entering.flat_slots(self._context)
        order = list(dict.fromkeys([*(entering.rows if entering else ()), *blocks.rows]))
        place_of = {row: place for place, row in enumerate(order)}
        self._flat_blocks, width = pages_of(self._context, order)
        self._gathered = self._context.cache.room(len(self._flat_blocks))
        first = [place_of[row] for row in blocks.rows]
        own_rows = np.repeat(np.array(first, dtype=np.int64), blocks.size)
        seen = np.repeat(np.array(blocks.lengths, dtype=np.int64), blocks.size)
        if entering is not None:
            seen = np.concatenate([entering.ends(), seen])
            places = entering.each([place_of[row] for row in entering.rows])
        else:
            places = np.empty(0, dtype=np.int64)
        self._num_rows = len(order)
        device = self._context.cache.device
        self._queries = RowLayout.of(np.concatenate([places, own_rows]), self._num_rows, device)
        self._own = RowLayout.of(own_rows, self._num_rows, device)
        self._mask = self._mask_of(seen, width, blocks)

    def _mask_of(self, seen: NDArray[np.int64], width: int, blocks: Blocks) -> Tensor:
        """What each query adds to its scores: [1, R, M * per_kv, width + S]."""
        cache, queries, own = self._context.cache, self._queries, self._own
        num_queries = self._num_rows * queries.width
        mask = torch.full((num_queries, width + own.width), -torch.inf, dtype=torch.float32)
        visible = np.arange(width) < np.ones((num_queries, 1), dtype=np.int64)  # padding sees one
        visible[queries.slots] = np.arange(width) < seen[:, None]
        mask[:, :width].masked_fill_(torch.from_numpy(visible), 0)
        size = blocks.size
        at = queries.slots[self._num_entering :].reshape(-1, size)
        columns = width + own.slots.reshape(-1, size) % own.width
        values = torch.zeros(size, size) if blocks.mask is None else blocks.mask.cpu()
        mask[torch.from_numpy(at)[:, :, None], torch.from_numpy(columns)[:, None, :]] = values
        mask = mask.view(self._num_rows, queries.width, -1).to(cache.device, cache.keys.dtype)
        return mask.repeat_interleave(self._per_kv, dim=1)[None]

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N + B * T, heads, head_dim], k and v [N + B * T, kv_heads, head_dim]: like q."""
        first, cache = self._num_entering, self._context.cache
        if self._flat_slots is not None:
            cache.write(layer_index, self._flat_slots, k[:first], v[:first])
        cache.gather(layer_index, self._flat_blocks, self._gathered)
        keys, values = self._gathered
        shape = (self._kv_heads, self._num_rows, -1, cache.head_dim)
        # A row's padding holds another row's token; a masked NaN of that one would be its own.
        own = (torch.nan_to_num(x[first:], 0.0, 0.0, 0.0) for x in (k, v))
        own_keys, own_values = (self._own.entries(x, self._num_rows) for x in own)
        keys = torch.cat([keys.view(shape), own_keys], dim=2)
        values = torch.cat([values.view(shape), own_values], dim=2)
        out = torch.nn.functional.scaled_dot_product_attention(
            self._queries.queries(q, self._num_rows, self._kv_heads),
            keys,
            values,
            self._mask,
            scale=self._scale,
        )
        return self._queries.outputs(out, q)
