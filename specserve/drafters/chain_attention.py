"""Attention of chains: blocks that grow by one token a pass, behind prefixes of their rows.

Each token sees its row's context and the tokens of its own chain before it. A layer's keys lie in
one array a row, gathered once: the context first, and then a column a pass and chain. So every pass
is one fused product over what has been written so far; whose columns are whose is a mask made once.
Pending tokens may enter with the first pass. Knows no model.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import TorchContext
from specserve.drafters.row_layout import RowLayout, pages_of

_SPARE = 1.25  # of room, so that rows which grow by a page do not need new room each time


class ChainAttention:
    """Call `plan` once a draft call, `run` in every layer of a pass, `advance` between passes."""

    def __init__(self, context: TorchContext, *, num_heads: int, scale: float) -> None:
        self._context = context
        self._scale = scale
        self._kv_heads = context.cache.num_kv_heads
        self._per_kv = num_heads // self._kv_heads
        self._rooms = context.cache.keys.new_empty(0)
        # Of every layer keys and values, both in `_rooms`: as they are gathered, and as
        # [kv_heads, R, keys, head_dim].
        self._gathered: list[tuple[Tensor, ...]] = []
        self._entries: list[tuple[Tensor, ...]] = []

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
        # Rows with chains first: later passes leave the others out.
        order = list(dict.fromkeys([*rows, *(entering.rows if entering else ())]))
        place_of = {row: place for place, row in enumerate(order)}
        places = np.array([place_of[row] for row in rows], dtype=np.int64)
        cache = self._context.cache
        self._num_rows, self._num_gathered = len(set(rows)), len(order)
        self._layout = RowLayout.of(places, self._num_rows, cache.device)
        self._flat_blocks, self._context_len = pages_of(
            self._context, order, num_passes * self._layout.width
        )
        self._make_rooms()
        self._plan_first(place_of, places, lengths, entering)
        self._mask = self._mask_of(self._layout, np.array(lengths), self._num_rows, num_passes)
        self._pads = None if pads is None else pads.cpu().numpy()
        self._pass = 0

    def _make_rooms(self) -> None:
        """Kept from call to call, because fresh pages of memory cost more than what is copied."""
        cache = self._context.cache
        self._gathered.clear()  # they are views of these
        self._entries.clear()
        shape = (cache.num_layers, 2, len(self._flat_blocks), cache.block_size * cache.head_dim)
        size = math.prod(shape)
        if len(self._rooms) < size:
            self._rooms = cache.keys.new_empty(0)
            self._rooms = cache.keys.new_empty(int(_SPARE * size))
        rooms = self._rooms[:size].view(shape)
        by_row = rooms.view(
            cache.num_layers, 2, self._kv_heads, self._num_gathered, -1, cache.head_dim
        )
        self._gathered = [room.unbind(0) for room in rooms.unbind(0)]
        self._entries = [entries.unbind(0) for entries in by_row.unbind(0)]

    def _plan_first(
        self,
        place_of: dict[int, int],
        places: NDArray[np.int64],
        lengths: Sequence[int],
        entering: Entering | None,
    ) -> None:
        """Of the first pass: its queries, what they see, and where pending tokens are kept."""
        self._num_entering, self._flat_slots = 0, None
        self._first, self._first_mask = self._layout, None
        if entering is None:
            return
        self._num_entering = len(entering.token_ids)
        self._flat_slots = entering.flat_slots(self._context)
        entering_places = entering.each([place_of[row] for row in entering.rows])
        num_rows, device = self._num_gathered, self._context.cache.device
        self._first = RowLayout.of(np.concatenate([entering_places, places]), num_rows, device)
        seen = np.concatenate([entering.ends(), np.array(lengths)])
        self._first_mask = self._mask_of(self._first, seen, num_rows, 1)

    def _mask_of(
        self, layout: RowLayout, seen: NDArray[np.int64], num_rows: int, num_passes: int
    ) -> Tensor:
        """What each query adds to its scores: [1, R, M * per_kv, L + passes * chains a row].

        `seen` [N]: positions of the context that each sees. The last B queries are the chains'.
        """
        width, cache = self._layout.width, self._context.cache
        num_queries, context_len = num_rows * layout.width, self._context_len
        num_columns = num_passes * width
        visible = np.zeros((num_queries, context_len + num_columns), dtype=bool)
        visible[:, 0] = True  # padding sees something
        visible[layout.slots, :context_len] = np.arange(context_len) < seen[:, None]
        # A chain's own column of every pass.
        chains = layout.slots[-len(self._layout.slots) :]
        own = self._layout.slots % width
        visible[chains, context_len:] = np.arange(num_columns) % width == own[:, None]
        mask = torch.full(visible.shape, -torch.inf)
        mask.masked_fill_(torch.from_numpy(visible), 0)
        mask = mask.view(num_rows, layout.width, -1).to(cache.device, cache.keys.dtype)
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
        layout, mask, num_rows = self._layout, self._mask, self._num_rows
        if self._pass == 0:
            k, v = self._begin(layer_index, k, v)
            if self._first_mask is not None:
                layout, mask, num_rows = self._first, self._first_mask, self._num_gathered
        end = self._append(layer_index, k, v)
        keys, values = self._entries[layer_index]
        out = torch.nn.functional.scaled_dot_product_attention(
            layout.queries(q, num_rows, self._kv_heads),
            keys[:, :num_rows, :end],
            values[:, :num_rows, :end],
            mask[..., :end],
            scale=self._scale,
        )
        return layout.outputs(out, q)

    def _begin(self, layer_index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take pending tokens into the context and gather it; entries of the chains alone."""
        cache, first = self._context.cache, self._num_entering
        if self._flat_slots is not None:
            cache.write(layer_index, self._flat_slots, k[:first], v[:first])
        cache.gather(layer_index, self._flat_blocks, self._gathered[layer_index])
        return k[first:], v[first:]

    def _append(self, layer_index: int, k: Tensor, v: Tensor) -> int:
        """Write one token a chain; how many columns are written by now."""
        start = self._context_len + self._pass * self._layout.width
        end = start + self._layout.width
        for room, entries in zip(self._entries[layer_index], (k, v), strict=True):
            columns = room[:, : self._num_rows, start:end]
            spread = self._layout.entries(entries, self._num_rows)
            # A row's padding holds another row's token; a masked NaN of that one would be its own.
            torch.nan_to_num(spread, 0.0, 0.0, 0.0, out=columns)
        return end
