"""Attention by torch's own operations, on any device; see `specserve.models.attention`.

When deterministic, on CPU, a token's result has the same bits whatever else is in the batch and
however its prompt was chunked: queries are computed in tiles whose height provably (by a probe of
this machine's kernels) does not matter, keys in tiles of fixed width whose partial sums are added
in the order of positions, and masked keys contribute exact zeros. On CUDA that is
`fixed_attention`'s, because kernels are chosen by every dimension there. See
docs/decisions/0002-deterministic-arithmetic.md.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK, KVCache

KEY_TILE = 128  # keys of one partial sum
# Tokens of a row multiplied at once. On CPU their scores should stay in the second-level cache.
MAX_QUERIES = {"cpu": 32, "cuda": 512}
_SPARE = 8  # times the room needed that is kept from a forward before
FIXED_TILE = 8  # tokens of a query tile on machines whose kernels depend on the number of rows


@dataclass(frozen=True)
class _Step:
    """Consecutive queries of a group's rows, multiplied at once. M a row, for R rows.

    Keys before a multiple of KEY_TILE are open to all of them and need no mask; keys from another
    one on are open to none and need no work. All layers work in the same memory, and these are its
    views, made once a forward: at a few tokens making one costs what the arithmetic does.
    """

    queries: torch.Tensor  # [kv_heads * R, M, head_dim]
    keys: torch.Tensor  # [kv_heads * R, head_dim, keys]
    values: tuple[torch.Tensor, ...]  # [kv_heads * R, KEY_TILE, head_dim] each
    scores: torch.Tensor  # [kv_heads * R, M, keys] float32
    masked: torch.Tensor  # the scores that need it: [kv_heads, R, M, keys - first masked]
    mask: torch.Tensor  # [R, M, keys - first masked] 0 or -inf
    weights: torch.Tensor  # [kv_heads * R, M, keys] of the values' dtype
    weight_tiles: tuple[torch.Tensor, ...]  # [kv_heads * R, M, KEY_TILE] each


@dataclass(frozen=True)
class _Group:
    """Rows of like size, computed together. R rows, T tokens a row, padded."""

    query_index: torch.Tensor | None  # [R * T] token of each padded query; None: all, in order
    output_index: torch.Tensor | None  # [valid tokens] which padded queries are real; None: all
    token_index: torch.Tensor  # [valid tokens] where in the batch they belong
    flat_blocks: torch.Tensor  # see KVCache.flat_blocks
    gathered: tuple[torch.Tensor, torch.Tensor]  # their keys and values, see KVCache.gather
    queries: torch.Tensor  # [kv_heads, R * T, queries a kv_head * head_dim], scaled
    steps: list[_Step]


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
            assert cache.device.type == "cpu", "FixedAttention's"
            self.tile, self.step = _invariant_tiling(
                cache.head_dim, self.queries_per_kv, cache.dtype
            )
        self._groups: list[_Group] = []
        self._flat_slots = torch.empty(0, dtype=torch.int64)
        self._scores = self._weights = torch.empty(0)

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
        self._groups = []  # its memory serves the next
        self._make_room(batch, by_size)
        self._groups = [
            self._plan_group(batch, np.array(rows), starts, num_queries)
            for (num_queries, _), rows in by_size.items()
        ]

    def _make_room(
        self, batch: AttentionBatch, by_size: Mapping[tuple[int, int], Sequence[int]]
    ) -> None:
        """For the scores and weights of the largest step; groups are computed one by one."""
        size = self.num_heads * max(
            len(rows) * min(num_queries, self.step) * _round_up(batch.context_lens[rows].max())
            for (num_queries, _), rows in by_size.items()
        )
        if not size <= len(self._scores) <= _SPARE * size:
            cache = self.cache
            self._scores = torch.empty(size, device=cache.device)
            self._weights = torch.empty(size, device=cache.device, dtype=cache.dtype)

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
        num_blocks = -(-_round_up(int(ends.max())) // block_size)
        blocks = np.full((len(rows), num_blocks), NULL_BLOCK, dtype=np.int64)
        for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
            used = batch.block_tables[row][: -(-int(end) // block_size)]
            blocks[i, : len(used)] = used
        offsets = np.arange(num_queries)
        valid = offsets < counts[:, None]
        # Padding repeats the row's first token: finite, discarded, and inside the batch.
        query_index = starts[rows][:, None] + np.where(valid, offsets, 0)
        positions = (ends - counts)[:, None] + np.where(valid, offsets, 0)
        is_whole = len(rows) == len(batch.num_tokens) and bool(valid.all())

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.ravel()).to(device)

        flat_blocks = self.cache.flat_blocks(on_device(blocks))
        gathered = self.cache.room(len(flat_blocks))
        heads, dim = self.cache.num_kv_heads, self.cache.head_dim
        queries = gathered[0].new_empty(heads, query_index.size, self.queries_per_kv * dim)
        return _Group(
            query_index=None if is_whole else on_device(query_index),
            output_index=None if is_whole else on_device(np.flatnonzero(valid)),
            token_index=on_device(query_index[valid]),
            flat_blocks=flat_blocks,
            gathered=gathered,
            queries=queries,
            steps=[
                self._plan_step(positions, slice(i, i + self.step), queries, gathered)
                for i in range(0, num_queries, self.step)
            ],
        )

    def _plan_step(
        self,
        positions: np.ndarray,
        tokens: slice,
        queries: torch.Tensor,
        gathered: tuple[torch.Tensor, torch.Tensor],
    ) -> _Step:
        """`tokens` of each row of a group, whose queries are at `positions` [R, T]."""
        num_rows, per_kv, dim = len(positions), self.queries_per_kv, self.cache.head_dim
        positions = positions[:, tokens]
        first_masked = (int(positions.min()) + 1) // KEY_TILE * KEY_TILE
        num_keys = _round_up(int(positions.max()) + 1)
        hidden = np.arange(first_masked, num_keys) > positions[:, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -torch.inf)
        batches = self.cache.num_kv_heads * num_rows
        shape = (batches, positions.shape[1] * per_kv, num_keys)
        scores, weights = (x[: math.prod(shape)].view(shape) for x in (self._scores, self._weights))
        keys, values = (x.view(batches, -1, dim)[:, :num_keys] for x in gathered)
        first = tokens.start * per_kv
        return _Step(
            queries=queries.view(batches, -1, dim)[:, first : first + shape[1]],
            keys=keys.transpose(1, 2),
            values=values.split(KEY_TILE, dim=1),
            scores=scores,
            masked=scores.unflatten(0, (-1, num_rows))[..., first_masked:],
            mask=mask.repeat_interleave(per_kv, dim=1).to(self.cache.device),
            weights=weights,
            weight_tiles=weights.split(KEY_TILE, dim=2),
        )

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer_index, self._flat_slots, k, v)
        if len(self._groups) == 1:  # lists its tokens in the order of the batch
            return self._attend(layer_index, q, self._groups[0])
        result = torch.empty_like(q)
        for group in self._groups:
            result.index_copy_(0, group.token_index, self._attend(layer_index, q, group))
        return result

    def _attend(self, layer: int, q: torch.Tensor, group: _Group) -> torch.Tensor:
        """Attention of one group's tokens: [valid tokens, heads, head_dim]."""
        self.cache.gather(layer, group.flat_blocks, group.gathered)
        if group.query_index is not None:
            q = q.index_select(0, group.query_index)
        heads, num_padded, width = group.queries.shape
        by_kv_head = q.reshape(num_padded, heads, width).transpose(0, 1)
        torch.mul(by_kv_head, self.scale, out=group.queries)
        parts = [_attend_step(step) for step in group.steps]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        out = out.view(heads, num_padded, width).transpose(0, 1)
        if group.output_index is not None:
            out = out.index_select(0, group.output_index)
        return out.reshape(-1, *q.shape[1:])


def _attend_step(step: _Step) -> torch.Tensor:
    """[kv_heads * R, M, head_dim]"""
    if step.weights.dtype == torch.float32:
        torch.bmm(step.queries, step.keys, out=step.scores)
    else:
        step.scores.copy_(torch.bmm(step.queries, step.keys))
    step.masked.add_(step.mask)
    if step.weights.dtype == torch.float32:
        torch.softmax(step.scores, dim=-1, out=step.weights)
    else:
        step.weights.copy_(torch.softmax(step.scores, dim=-1))
    out = torch.bmm(step.weight_tiles[0], step.values[0])
    for weights, values in zip(step.weight_tiles[1:], step.values[1:], strict=True):
        out.baddbmm_(weights, values)
    return out


def _round_up(num_keys: int) -> int:
    return -(-num_keys // KEY_TILE) * KEY_TILE


@functools.cache
def _invariant_tiling(head_dim: int, queries_per_kv: int, dtype: torch.dtype) -> tuple[int, int]:
    """The smallest (tile, step) in tokens for which a query's bits do not depend on its company.

    Kernels differ for one or two rows, not beyond: products of m rows are compared with the same
    rows inside a product of MAX_QUERIES tokens. Where nothing passes, every product has FIXED_TILE
    tokens, which is invariant by construction.
    """
    most = MAX_QUERIES["cpu"]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    queries = random(2, most * queries_per_kv, head_dim)
    weights = random(2, most * queries_per_kv, 2 * KEY_TILE)
    keys = random(2, 2 * KEY_TILE, head_dim)

    def products(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.bmm(queries[:, rows], keys.transpose(1, 2))
        out = torch.bmm(weights[:, rows, :KEY_TILE], keys[:, :KEY_TILE])
        out.baddbmm_(weights[:, rows, KEY_TILE:], keys[:, KEY_TILE:])
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
