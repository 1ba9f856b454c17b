"""Attention of chains: blocks that grow by one token a pass, behind prefixes of their rows.

Each token sees its row's context and the tokens of its own chain before it. A layer's keys lie in
one array a row, the gathered context first and then a column a pass and chain, so that every pass
is one fused product over what has been written so far; whose columns are whose is a mask made once.
Tokens in flight may enter with the first pass. Knows no model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draft_node.branch_attention import Blocks, BranchAttention, Entering
from draft_node.context import Context
from draft_node.row_layout import RowLayout, pages_of


class ChainAttention:
    """Call `plan` once a draft call, `run` in every layer of a pass, `advance` between passes."""

    def __init__(self, context: Context, *, num_heads: int, scale: float) -> None:
        self._context = context
        self._scale = scale
        self._per_kv = num_heads // context.cache.num_kv_heads
        self._first = BranchAttention(context, num_heads=num_heads, scale=scale)
        self._entries: dict[int, tuple[Tensor, Tensor]] = {}

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        *,
        entering: Entering | None = None,
        pads: Tensor | None = None,
    ) -> None:
        """B chains behind the first `lengths` positions of their `rows`.

        The first pass is the entering tokens, then B tokens; all others are B tokens. The first
        `pads` [B] tokens of a chain are seen by nobody but themselves.
        """
        self._first.plan(Blocks(rows, lengths, 1), entering)
        self._num_entering = 0 if entering is None else len(entering.token_ids)
        device = self._context.cache.device
        order = list(dict.fromkeys(rows))
        place_of = {row: place for place, row in enumerate(order)}
        self._num_rows = len(order)
        self._layout = RowLayout.of(
            np.array([place_of[row] for row in rows], dtype=np.int64), len(order), device
        )
        self._flat_blocks, self._context_len = pages_of(self._context, order)
        self._num_keys = self._context_len + num_passes * self._layout.width
        self._mask = self._mask_of(lengths)
        self._pads = None if pads is None else pads.cpu().numpy()
        self._pass = 0
        self._entries.clear()

    def _mask_of(self, lengths: Sequence[int]) -> Tensor:
        """What each query adds to its scores: [1, R, M * per_kv, L + passes * M]."""
        width, cache = self._layout.width, self._context.cache
        num_queries, context_len = self._num_rows * width, self._context_len
        visible = np.zeros((num_queries, self._num_keys), dtype=bool)
        seen = np.array(lengths)[:, None]
        visible[self._layout.slots, :context_len] = np.arange(context_len) < seen
        # A chain's own column of every pass; padding sees that of its own place.
        places = np.arange(num_queries) % width
        columns = np.arange(self._num_keys - context_len) % width
        visible[:, context_len:] = columns == places[:, None]
        mask = torch.full(visible.shape, -torch.inf)
        mask.masked_fill_(torch.from_numpy(visible), 0)
        mask = mask.view(self._num_rows, width, -1).to(cache.device, cache.keys.dtype)
        return mask.repeat_interleave(self._per_kv, dim=1)[None]

    def advance(self) -> None:
        """The pass is over."""
        if self._pads is not None:
            self._hide(self._pads > self._pass)
        self._pass += 1

    def _hide(self, chains: np.ndarray) -> None:
        """Nobody sees this pass's tokens of these `chains`, bool [B], from now on."""
        rows, places = np.divmod(self._layout.slots[chains], self._layout.width)
        columns = self._context_len + self._pass * self._layout.width + places
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            self._mask[0, row, :, column] = -torch.inf

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N + B, heads, head_dim], k and v [N + B, kv_heads, head_dim]: like q.

        N is 0 after the first pass.
        """
        if self._pass == 0:
            out = self._first.run(layer_index, q, k, v)
            self._begin(layer_index)
            self._append(layer_index, k[self._num_entering :], v[self._num_entering :])
            return out
        end = self._append(layer_index, k, v)
        keys, values = self._entries[layer_index]
        out = torch.nn.functional.scaled_dot_product_attention(
            self._layout.queries(q, self._num_rows, len(keys)),
            keys[:, :, :end],
            values[:, :, :end],
            self._mask[..., :end],
            scale=self._scale,
        )
        return self._layout.outputs(out, q)

    def _begin(self, layer_index: int) -> None:
        """Gather the rows' context, tokens in flight included, and leave room for the chains."""
        cache = self._context.cache
        shape = (cache.num_kv_heads, self._num_rows, self._num_keys, cache.head_dim)
        gathered = cache.gather(layer_index, self._flat_blocks)
        keys, values = cache.keys.new_empty(shape), cache.keys.new_empty(shape)
        for room, found in zip((keys, values), gathered, strict=True):
            room[:, :, : self._context_len] = found.view(*shape[:2], -1, shape[3])
        self._entries[layer_index] = keys, values

    def _append(self, layer_index: int, k: Tensor, v: Tensor) -> int:
        """Write one token a chain; how many columns are written by now."""
        start = self._context_len + self._pass * self._layout.width
        end = start + self._layout.width
        for room, entries in zip(self._entries[layer_index], (k, v), strict=True):
            room[:, :, start:end] = self._layout.entries(entries, self._num_rows)
        return end
