"""Attention of flattened variable-length rows over the paged cache, behind plan() and run().

A row brings 1..n new tokens (decode, verification and prefill chunks are the same thing here).
`plan` does the host's work once a forward; `run` is called by every layer.

`TorchAttention` is the reference for CPU and CUDA. When deterministic, a token's result has the
same bits whatever else is in the batch and however its prompt was chunked: queries are computed in
tiles whose height provably (by a probe of this machine's kernels) does not matter, keys in tiles of
fixed width whose partial sums are added in the order of positions, and masked keys contribute exact
zeros. See docs/decisions/0002-deterministic-arithmetic.md.
"""

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from specserve.model.kv_cache import NULL_BLOCK, KVCache

KEY_TILE = 128  # keys of one partial sum
# Tokens of a row multiplied at once. On CPU their scores should stay in the second-level cache.
MAX_QUERIES = {"cpu": 32, "cuda": 512}
FIXED_TILE = 8  # tokens of a query tile on machines whose kernels depend on the number of rows


@dataclass(frozen=True)
class AttentionBatch:
    """What a forward attends to. B rows, N = sum(num_tokens).

    num_tokens[b] new tokens of row b end at context_lens[b] (old and new together);
    block_tables[b] lists the blocks that hold its context, in order.
    """

    num_tokens: np.ndarray  # [B] int64
    context_lens: np.ndarray  # [B] int64
    block_tables: list[np.ndarray]  # B arrays of int64

    def slots(self, block_size: int) -> np.ndarray:
        """Where each new token's entries are kept, block_id * block_size + offset: [N] int64."""
        counts, ends = self.num_tokens, self.context_lens
        places = [
            (positions := np.arange(end - count, end), table[positions // block_size])
            for count, end, table in zip(counts, ends, self.block_tables, strict=True)
        ]
        return np.concatenate([blocks * block_size + p % block_size for p, blocks in places])


class Attention(Protocol):
    def plan(self, batch: AttentionBatch) -> None:
        """Prepare one forward of `batch`."""
        ...

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write k, v [N, kv_heads, head_dim], attend causally with q [N, heads, head_dim].

        Returns [N, heads, head_dim]. The scale head_dim ** -0.5 is applied here.
        """
        ...


@dataclass(frozen=True)
class _Step:
    """Consecutive queries of a group's rows, multiplied at once. M of them a row.

    Keys before `first_masked` are open to all of them, keys from `num_keys` on to none: neither
    needs a mask, and the latter no work. Both are multiples of KEY_TILE.
    """

    queries: slice
    first_masked: int
    num_keys: int
    mask: torch.Tensor  # [R, M, num_keys - first_masked] 0 or -inf


@dataclass(frozen=True)
class _Group:
    """Rows of like size, computed together. R rows, T tokens a row, padded."""

    query_index: torch.Tensor  # [R * T] flattened token of each padded query
    output_index: torch.Tensor  # [valid tokens] which padded queries are real
    token_index: torch.Tensor  # [valid tokens] where in the batch they belong
    flat_blocks: torch.Tensor  # see KVCache.flat_blocks
    steps: list[_Step]
    num_rows: int
    num_queries: int  # T


class TorchAttention:
    """Gathered, masked softmax attention in plain torch operations."""

    def __init__(self, cache: KVCache, *, num_heads: int, deterministic: bool) -> None:
        self.cache = cache
        self.num_heads = num_heads
        self.queries_per_kv = num_heads // cache.num_kv_heads
        self.scale = cache.head_dim**-0.5
        # A row's tokens are padded to a multiple of `tile` and multiplied `step` at a time.
        self.tile, self.step = 1, MAX_QUERIES[cache.device.type]
        if deterministic:
            self.tile, self.step = _invariant_tiling(
                cache.head_dim, self.queries_per_kv, cache.keys.dtype, cache.device.type
            )
        self._groups: list[_Group] = []
        self._flat_slots = torch.empty(0, dtype=torch.int64)

    def plan(self, batch: AttentionBatch) -> None:
        """Group the rows by size, lay out their queries, blocks and masks."""
        starts = np.concatenate([[0], np.cumsum(batch.num_tokens)])
        by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (count, end) in enumerate(zip(batch.num_tokens, batch.context_lens, strict=True)):
            # Rows are padded to the longest of their group: a long one must not tax the short.
            num_key_tiles = -(-int(end) // KEY_TILE)
            by_size[self._padded(int(count)), (num_key_tiles - 1).bit_length()].append(row)
        slots = torch.from_numpy(batch.slots(self.cache.block_size))
        self._flat_slots = self.cache.flat_slots(slots.to(self.cache.device))
        self._groups = [
            self._plan_group(batch, np.array(rows), starts, num_queries)
            for (num_queries, _), rows in by_size.items()
        ]

    def _padded(self, num_tokens: int) -> int:
        """Tokens a row is padded to: few different sizes, so that few groups are computed."""
        if num_tokens <= self.tile:
            return self.tile
        if num_tokens <= FIXED_TILE:
            return FIXED_TILE
        return -(-num_tokens // FIXED_TILE) * FIXED_TILE

    def _plan_group(
        self, batch: AttentionBatch, rows: np.ndarray, starts: np.ndarray, num_queries: int
    ) -> _Group:
        device, block_size = self.cache.device, self.cache.block_size
        counts, ends = batch.num_tokens[rows], batch.context_lens[rows]
        context_len = _round_up(int(ends.max()))
        blocks = np.full((len(rows), -(-context_len // block_size)), NULL_BLOCK, dtype=np.int64)
        for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
            used = batch.block_tables[row][: -(-int(end) // block_size)]
            blocks[i, : len(used)] = used
        offsets = np.arange(num_queries)
        valid = offsets < counts[:, None]
        # Padding repeats the row's first token: finite, discarded, and inside the batch.
        query_index = starts[rows][:, None] + np.where(valid, offsets, 0)
        positions = (ends - counts)[:, None] + np.where(valid, offsets, 0)
        return _Group(
            query_index=torch.from_numpy(query_index.ravel()).to(device),
            output_index=torch.from_numpy(np.flatnonzero(valid)).to(device),
            token_index=torch.from_numpy(query_index[valid]).to(device),
            flat_blocks=self.cache.flat_blocks(torch.from_numpy(blocks.ravel()).to(device)),
            steps=[
                self._plan_step(positions[:, i : i + self.step], i)
                for i in range(0, num_queries, self.step)
            ],
            num_rows=len(rows),
            num_queries=num_queries,
        )

    def _plan_step(self, positions: np.ndarray, first: int) -> _Step:
        """The queries from the `first` of a group on, at `positions` [R, tokens]."""
        per_kv = self.queries_per_kv
        first_masked = (int(positions.min()) + 1) // KEY_TILE * KEY_TILE
        num_keys = _round_up(int(positions.max()) + 1)
        hidden = np.arange(first_masked, num_keys) > positions[:, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -torch.inf)
        return _Step(
            queries=slice(first * per_kv, (first + positions.shape[1]) * per_kv),
            first_masked=first_masked,
            num_keys=num_keys,
            mask=mask.repeat_interleave(per_kv, dim=1).to(self.cache.device),
        )

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer_index, self._flat_slots, k, v)
        if len(self._groups) == 1:
            group = self._groups[0]
            out = self._attend(layer_index, q, group)
            # One group lists its tokens in the order of the batch.
            return out if out.shape[0] == q.shape[0] else out.index_select(0, group.output_index)
        result = torch.empty_like(q)
        for group in self._groups:
            out = self._attend(layer_index, q, group).index_select(0, group.output_index)
            result.index_copy_(0, group.token_index, out)
        return result

    def _attend(self, layer: int, q: torch.Tensor, group: _Group) -> torch.Tensor:
        """Attention of one group: [R * T, heads, head_dim], padding included."""
        heads, dim, per_kv = self.cache.num_kv_heads, self.cache.head_dim, self.queries_per_kv
        rows, num_queries = group.num_rows, group.num_queries
        keys, values = self.cache.gather(layer, group.flat_blocks)
        keys = keys.view(heads * rows, -1, dim).transpose(1, 2)
        values = values.view(heads * rows, -1, dim)
        # [R, T, kv_heads, per_kv, dim] -> [kv_heads * R, T * per_kv, dim]
        queries = q.index_select(0, group.query_index).mul_(self.scale)
        queries = queries.view(rows, num_queries, heads, per_kv, dim).permute(2, 0, 1, 3, 4)
        queries = queries.reshape(heads * rows, num_queries * per_kv, dim)
        parts = [
            self._attend_step(queries[:, step.queries], keys, values, step) for step in group.steps
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        out = out.view(heads, rows, num_queries, per_kv, dim).permute(1, 2, 0, 3, 4)
        return out.reshape(rows * num_queries, heads * per_kv, dim)

    def _attend_step(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: _Step
    ) -> torch.Tensor:
        """M queries of every row: [kv_heads * R, M, head_dim]."""
        scores = torch.bmm(queries, keys[:, :, : step.num_keys])
        if scores.dtype != torch.float32:
            scores = scores.float()
        by_row = scores.unflatten(0, (self.cache.num_kv_heads, -1))
        by_row[..., step.first_masked :].add_(step.mask)
        weights = torch.softmax(scores, dim=-1).to(values.dtype)
        out = torch.bmm(weights[:, :, :KEY_TILE], values[:, :KEY_TILE])
        for i in range(KEY_TILE, step.num_keys, KEY_TILE):
            out = torch.baddbmm(out, weights[:, :, i : i + KEY_TILE], values[:, i : i + KEY_TILE])
        return out


def _round_up(num_keys: int) -> int:
    return -(-num_keys // KEY_TILE) * KEY_TILE


@functools.cache
def _invariant_tiling(
    head_dim: int, queries_per_kv: int, dtype: torch.dtype, device: str
) -> tuple[int, int]:
    """The smallest (tile, step) in tokens for which a query's bits do not depend on its company.

    Kernels differ for one or two rows, not beyond: products of m rows are compared with the same
    rows inside a product of MAX_QUERIES tokens. Where nothing passes, every product has FIXED_TILE
    tokens, which is invariant by construction.
    """
    most = MAX_QUERIES[device]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    queries = random(2, most * queries_per_kv, head_dim)
    weights = random(2, most * queries_per_kv, 2 * KEY_TILE)
    keys = random(2, 2 * KEY_TILE, head_dim)

    def products(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.bmm(queries[:, rows], keys.transpose(1, 2))
        out = torch.bmm(weights[:, rows, :KEY_TILE], keys[:, :KEY_TILE])
        out = torch.baddbmm(out, weights[:, rows, KEY_TILE:], keys[:, KEY_TILE:])
        return scores, out

    whole = products(slice(None))

    def same(num_tokens: int) -> bool:
        size = num_tokens * queries_per_kv
        return all(
            torch.equal(part, full[:, start : start + size])
            for start in (0, size)
            for part, full in zip(products(slice(start, start + size)), whole, strict=True)
        )

    for tile in (1, 2, 4, FIXED_TILE):
        sizes = [tile, *range(FIXED_TILE, most // 2 + 1, FIXED_TILE)]
        if all(same(size) for size in sizes):
            return tile, most
    return FIXED_TILE, FIXED_TILE
