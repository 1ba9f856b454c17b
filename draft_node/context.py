"""Context KV of many rows in one paged pool, and attention of draft blocks over it.

Entries belong to verified tokens, one position each, appended and truncated in order. A block is a
few new tokens behind a row's context; branches of one request share the row, whose entries are
gathered once for all of them. Knows no model: keys and values come in ready to use.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specserve.errors import Exhausted
from specserve.model.attention import AttentionBatch
from specserve.model.kv_cache import NULL_BLOCK, KVCache

BLOCK_SIZE = 16  # tokens of a page


class ContextRows:
    """Which pages hold which row's positions. A row exists from its first token to `free`."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` counts the null block."""
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def length(self, row: int) -> int:
        return self._lengths.get(row, 0)

    def table(self, row: int) -> np.ndarray:
        """The pages of `row` in order, int64."""
        return np.array(self._tables.get(row, ()), dtype=np.int64)

    def append(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]
    ) -> np.ndarray:
        """Reserve positions at the rows' ends: their slots, row by row, [sum(counts)] int64.

        All or nothing: ValueError where a row does not end at its start, `Exhausted` without pages.
        """
        needed = 0
        for row, start, count in zip(rows, starts, counts, strict=True):
            if start != self.length(row):
                raise ValueError(f"row {row} ends at {self.length(row)}, not at {start}")
            needed += -(-(start + count) // BLOCK_SIZE) - len(self._tables.get(row, ()))
        if len(set(rows)) != len(rows):
            raise ValueError("a row occurs twice in one update")
        if needed > len(self._free):
            raise Exhausted(f"draft context: {needed} pages needed, {len(self._free)} free")
        slots = [
            self._append(row, start, count)
            for row, start, count in zip(rows, starts, counts, strict=True)
        ]
        return np.concatenate(slots)

    def _append(self, row: int, start: int, count: int) -> np.ndarray:
        end = start + count
        table = self._tables.setdefault(row, [])
        while len(table) * BLOCK_SIZE < end:
            table.append(self._free.pop())
        self._lengths[row] = end
        return self.slots(row, start, end)

    def slots(self, row: int, start: int, end: int) -> np.ndarray:
        """Where positions start..end-1 are kept: [end - start] int64."""
        positions = np.arange(start, end)
        pages = np.array(self._tables[row], dtype=np.int64)
        return pages[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    def truncate(self, row: int, length: int) -> None:
        """Forget positions from `length` on. ValueError if the row is shorter than that."""
        if not 0 <= length <= self.length(row):
            raise ValueError(f"row {row} has {self.length(row)} positions, not {length}")
        if length == 0:
            self.free(row)
            return
        table, kept = self._tables[row], -(-length // BLOCK_SIZE)
        self._free.extend(reversed(table[kept:]))
        del table[kept:]
        self._lengths[row] = length

    def free(self, row: int) -> None:
        self._free.extend(reversed(self._tables.pop(row, [])))
        self._lengths.pop(row, None)


class Context:
    """`ContextRows` and the keys and values in their pages."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Room for `num_tokens` positions, over all rows, pages rounded up."""
        num_blocks = -(-num_tokens // BLOCK_SIZE) + 1
        self.rows = ContextRows(num_blocks)
        self.cache = KVCache(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            dtype=dtype,
            device=device,
        )

    def write(self, slots: np.ndarray, keys: Tensor, values: Tensor) -> None:
        """Store entries of all layers: keys, values [N, layers * kv_heads, head_dim]."""
        layers, heads = self.cache.num_layers, self.cache.num_kv_heads
        flat_slots = self.cache.flat_slots(torch.from_numpy(slots).to(self.cache.device))
        shape = (-1, layers, heads, self.cache.head_dim)
        for layer, (k, v) in enumerate(
            zip(keys.view(shape).unbind(1), values.view(shape).unbind(1), strict=True)
        ):
            self.cache.write(layer, flat_slots, k, v)

    @torch.inference_mode()
    def read(self, row: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row, each [kv_heads, length, head_dim]; a copy."""
        table = torch.from_numpy(self.rows.table(row)).to(self.cache.device)
        keys, values = self.cache.gather(layer, self.cache.flat_blocks(table))
        length = self.rows.length(row)
        return keys[:, :length].clone(), values[:, :length].clone()

    def causal_batch(self, rows: Sequence[int], counts: Sequence[int]) -> AttentionBatch:
        """What `TorchAttention` needs for the rows' last `counts` positions."""
        return AttentionBatch(
            np.array(counts),
            np.array([self.rows.length(row) for row in rows]),
            [self.rows.table(row) for row in rows],
        )


class BlockAttention:
    """New tokens see their row's context and keys of their own block.

    Call `plan` once a draft call, then `attend` in every layer and step.
    """

    def __init__(self, context: Context, *, num_heads: int, scale: float) -> None:
        self._context = context
        self.scale = scale
        self._per_kv = num_heads // context.cache.num_kv_heads
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """B blocks behind the first `lengths` positions of their `rows`."""
        device = self._context.cache.device
        distinct = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        # Whole rows, whatever is used of them: the work does not tell how long the prefixes are.
        tables = [self._context.rows.table(row) for row in distinct]
        width = max(map(len, tables))
        blocks = np.full((len(distinct), width), NULL_BLOCK, dtype=np.int64)
        for place, table in enumerate(tables):
            blocks[place, : len(table)] = table
        self._flat_blocks = self._context.cache.flat_blocks(
            torch.from_numpy(blocks.ravel()).to(device)
        )
        hidden = np.arange(width * BLOCK_SIZE) >= np.array(lengths)[:, None]
        mask = torch.zeros(hidden.shape, dtype=torch.float32)
        mask.masked_fill_(torch.from_numpy(hidden), -torch.inf)
        self._mask = mask[:, None].to(device)  # [B, 1, L]
        self._block_mask: Tensor | None = None
        self._num_rows, self._num_blocks = len(distinct), len(rows)
        self._group([distinct[row] for row in rows], device)
        self._gathered.clear()

    def _group(self, places: Sequence[int], device: torch.device) -> None:
        """Lay the blocks out as [R rows, M a row]; indices are None where order is so already."""
        counts = np.bincount(places, minlength=self._num_rows)
        self._width = int(counts.max())
        even = self._width * self._num_rows == len(places)
        if even and np.array_equal(places, np.repeat(np.arange(self._num_rows), self._width)):
            self._spread = self._collect = None
            return
        spread = np.zeros((self._num_rows, self._width), dtype=np.int64)  # padding: any block
        collect, seen = np.empty(len(places), dtype=np.int64), np.zeros(self._num_rows, int)
        for block, place in enumerate(places):
            spread[place, seen[place]] = block
            collect[block] = place * self._width + seen[place]
            seen[place] += 1
        self._spread = torch.from_numpy(spread.ravel()).to(device)
        self._collect = torch.from_numpy(collect).to(device)

    def by_block(self, entries: Tensor) -> Tensor:
        """[B * T, kv_heads, head_dim] -> [kv_heads, B, T, head_dim]"""
        return entries.view(self._num_blocks, -1, *entries.shape[1:]).permute(2, 0, 1, 3)

    def attend(self, layer: int, q: Tensor, block_keys: Tensor, block_values: Tensor) -> Tensor:
        """T queries a block [B * T, heads, head_dim] over context and block keys.

        block_keys, block_values [kv_heads, B, S, head_dim]; S may differ from T.
        """
        kv_heads, num_blocks, head_dim = len(block_keys), self._num_blocks, q.shape[-1]
        keys, values = self._row_entries(layer)
        # [B, T, kv_heads, per_kv, dim] -> [kv_heads, B, T * per_kv, dim]
        queries = q.view(num_blocks, -1, kv_heads, self._per_kv, head_dim) * self.scale
        queries = queries.permute(2, 0, 1, 3, 4).reshape(kv_heads, num_blocks, -1, head_dim)
        height = queries.shape[2]

        scores = torch.matmul(self._by_row(queries), keys.transpose(2, 3)).float()
        scores = self._by_blocks(scores, height).add_(self._mask)
        own = torch.matmul(queries, block_keys.transpose(2, 3)).float()
        if self._block_mask is not None:
            own += self._block_mask.repeat_interleave(self._per_kv, dim=1)
        weights = torch.softmax(torch.cat([scores, own], dim=-1), dim=-1).to(values.dtype)

        seen, own = weights.split((scores.shape[-1], own.shape[-1]), dim=-1)
        out = self._by_blocks(torch.matmul(self._by_row(seen), values), height)
        out = torch.matmul(own, block_values).add_(out)
        out = out.view(kv_heads, num_blocks, -1, self._per_kv, head_dim).permute(1, 2, 0, 3, 4)
        return out.reshape(q.shape)

    def hide(self, pads: Tensor, num_keys: int) -> None:
        """Of a block's keys, its first `pads` [B] are seen no more, but for the newest."""
        places = torch.arange(num_keys, device=pads.device)
        hidden = (places < pads[:, None]) & (places < num_keys - 1)
        mask = torch.zeros(hidden.shape, device=pads.device).masked_fill_(hidden, -torch.inf)
        self._block_mask = mask[:, None]

    def _row_entries(self, layer: int) -> tuple[Tensor, Tensor]:
        """Context of the distinct rows, each [kv_heads, R, L, head_dim]."""
        if layer in self._gathered:
            return self._gathered[layer]
        keys, values = self._context.cache.gather(layer, self._flat_blocks)
        shape = (keys.shape[0], self._num_rows, keys.shape[1] // self._num_rows, keys.shape[2])
        # The cache gathers every layer into the same memory, and later steps look here again.
        self._gathered[layer] = keys.view(shape).clone(), values.view(shape).clone()
        return self._gathered[layer]

    def _by_row(self, x: Tensor) -> Tensor:
        """[kv_heads, B, M, D] -> [kv_heads, R, blocks a row * M, D], blocks repeated as padding."""
        if self._spread is not None:
            x = x.index_select(1, self._spread)
        return x.reshape(x.shape[0], self._num_rows, self._width * x.shape[2], x.shape[3])

    def _by_blocks(self, x: Tensor, height: int) -> Tensor:
        """The inverse of `_by_row` for M = height."""
        x = x.reshape(x.shape[0], self._num_rows * self._width, height, x.shape[3])
        return x if self._collect is None else x.index_select(1, self._collect)


class ChainAttention:
    """One new token a block at a time: each sees the context and the block's tokens before it."""

    def __init__(
        self,
        attention: BlockAttention,
        rows: Sequence[int],
        lengths: Sequence[int],
        pads: Tensor | None = None,
    ) -> None:
        """As `BlockAttention.plan`, which is called here.

        The first `pads` tokens of a block, int64 [B], are seen by nobody but themselves.
        """
        attention.plan(rows, lengths)
        self._attention = attention
        self._pads = pads
        self._entries: dict[int, tuple[Tensor, Tensor]] = {}

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, heads, head_dim], k and v [B, kv_heads, head_dim]: like q."""
        keys, values = self._attention.by_block(k), self._attention.by_block(v)
        if layer_index in self._entries:
            earlier_keys, earlier_values = self._entries[layer_index]
            keys = torch.cat([earlier_keys, keys], dim=2)
            values = torch.cat([earlier_values, values], dim=2)
        self._entries[layer_index] = keys, values
        if self._pads is not None:
            self._attention.hide(self._pads, keys.shape[2])
        return self._attention.attend(layer_index, q, keys, values)
