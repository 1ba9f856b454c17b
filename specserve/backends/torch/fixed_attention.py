"""Attention whose every product has one shape: the deterministic one where libraries choose.

cuBLAS picks a kernel, and with it the order of a sum, by the shapes it is given: how many rows are
computed together, how many keys the longest of them has. Here queries come in tiles of QUERY_TILE
tokens, keys in tiles of KEY_TILE, and PAIRS of both are multiplied at a time, whatever the batch,
the chunks of a prompt and the number of ranks. So one kernel computes all of them; that it treats
equal rows alike wherever they stand is tried once. What several tiles of keys bring to a query is
added in the order of positions, element by element, and masked keys contribute exact zeros. Nothing
is computed in less than float32.

For tests and audits: few tokens cost what QUERY_TILE do, and all pairs of a forward are in memory
at once: 512 tokens behind 4,000 of a model with 32 heads take .8 GB.
See docs/decisions/0002-deterministic-arithmetic.md.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch

from specserve.backends.torch.attention import KEY_TILE
from specserve.errors import Unsupported
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import KVCache

QUERY_TILE = 32  # tokens of one row
PAIRS = 16  # of a tile of queries and one of keys, of one head, multiplied at once
_SUMS = 8  # columns of ones beside the values, which sum the weights; vectors stay aligned


@dataclass(frozen=True)
class _Tiles:
    """A batch in tiles. Q tiles of queries, K of keys, E pairs of both, padded."""

    queries: np.ndarray  # [Q, QUERY_TILE] token of the batch; the last of a row fills its tile
    keys: np.ndarray  # [K, KEY_TILE] slot; the last one's again beyond the context
    pairs: np.ndarray  # [2, E] tile of queries, tile of keys
    masks: np.ndarray  # [E, QUERY_TILE, KEY_TILE] whether a key is hidden from a query
    # Pairs with the first, second, ... tile of keys of their row, and their tiles of queries.
    levels: list[tuple[np.ndarray, np.ndarray]]
    outputs: np.ndarray  # [N] where in [Q * QUERY_TILE] each token is


class FixedAttention:
    """See `Attention`: plan() once a forward, run() in every layer."""

    def __init__(self, cache: KVCache, *, num_heads: int) -> None:
        self.cache = cache
        self.queries_per_kv = num_heads // cache.num_kv_heads
        self.scale = cache.head_dim**-0.5
        self._dtype = torch.promote_types(cache.dtype, torch.float32)
        _check_rows(cache.head_dim, QUERY_TILE * self.queries_per_kv, self._dtype, cache.device)

    def plan(self, batch: AttentionBatch) -> None:
        cache, device = self.cache, self.cache.device
        tiles = _in_tiles(batch, cache.block_size, cache.num_kv_heads)

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        heads = np.arange(cache.num_kv_heads)[:, None]
        self._num_queries, self._num_keys = len(tiles.queries), len(tiles.keys)
        self._flat_slots = cache.flat_slots(on_device(batch.slots(cache.block_size)))
        self._tokens = on_device(tiles.queries.ravel())
        self._slots = on_device(tiles.keys.ravel())
        sizes = (self._num_queries, self._num_keys)
        self._pairs = [
            on_device((heads * size + side).ravel())
            for size, side in zip(sizes, tiles.pairs, strict=True)
        ]
        masks = torch.zeros(tiles.masks.shape).masked_fill_(
            torch.from_numpy(tiles.masks), -torch.inf
        )
        self._masks = masks.repeat_interleave(self.queries_per_kv, dim=1).to(device)
        self._levels = [(on_device(pairs), on_device(queries)) for pairs, queries in tiles.levels]
        self._outputs = on_device(tiles.outputs)

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.cache.write(layer_index, self._flat_slots, k, v)
        heads, per_kv, dim = self.cache.num_kv_heads, self.queries_per_kv, self.cache.head_dim
        rows = QUERY_TILE * per_kv
        of_queries, of_keys = self._pairs
        tokens = (q.to(self._dtype) * self.scale).index_select(0, self._tokens)
        queries = tokens.view(-1, heads, per_kv, dim).transpose(0, 1).reshape(-1, rows, dim)
        keys, values = self._gather(layer_index)

        products = _multiply(
            queries.index_select(0, of_queries), keys.index_select(0, of_keys).transpose(1, 2)
        )
        scores = products.view(heads, -1, rows, KEY_TILE).add_(self._masks)
        largest = self._largest(scores.amax(dim=3)).flatten(0, 1).index_select(0, of_queries)
        weights = scores.flatten(0, 1).sub_(largest.unsqueeze(2)).exp_()
        products = _multiply(weights, values.index_select(0, of_keys))
        total = self._added(products.view(heads, -1, rows, dim + _SUMS))

        result = total[..., :dim] / total[..., dim : dim + 1]
        result = result.view(heads, -1, per_kv, dim).transpose(0, 1)
        result = result.reshape(-1, heads * per_kv, dim).index_select(0, self._outputs)
        return result.to(q.dtype)

    def _gather(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [heads * K, KEY_TILE, head_dim], and values with `_SUMS` columns of ones."""
        shape = (self.cache.num_kv_heads * self._num_keys, KEY_TILE, self.cache.head_dim)
        keys, values = (
            kept[layer].index_select(1, self._slots).to(self._dtype).view(shape)
            for kept in (self.cache.keys, self.cache.values)
        )
        return keys, torch.cat((values, values.new_ones(*shape[:2], _SUMS)), dim=2)

    def _largest(self, of_pairs: torch.Tensor) -> torch.Tensor:
        """The largest score of every query: [heads, E, rows] -> [heads, Q, rows]"""
        heads, _, rows = of_pairs.shape
        found = of_pairs.new_full((heads, self._num_queries, rows), -torch.inf)
        for pairs, queries in self._levels:
            so_far = found.index_select(1, queries)
            found.index_copy_(1, queries, so_far.maximum(of_pairs.index_select(1, pairs)))
        return found

    def _added(self, of_pairs: torch.Tensor) -> torch.Tensor:
        """What all keys of a query bring: [heads, E, rows, width] -> [heads, Q, rows, width]"""
        heads, _, rows, width = of_pairs.shape
        total = of_pairs.new_zeros(heads, self._num_queries, rows, width)
        for pairs, queries in self._levels:
            so_far = total.index_select(1, queries)
            total.index_copy_(1, queries, so_far.add_(of_pairs.index_select(1, pairs)))
        return total


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched product, `PAIRS` at a time, of which the batch is a multiple."""
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    for start in range(0, len(a), PAIRS):
        some = slice(start, start + PAIRS)
        torch.bmm(a[some], b[some], out=out[some])
    return out


@functools.cache
def _check_rows(head_dim: int, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise `Unsupported` where equal rows of one product differ by where they stand in it."""
    generator = torch.Generator().manual_seed(0)

    def alike(*sizes: int) -> torch.Tensor:
        """As many times as there are pairs."""
        one = torch.randn(sizes, generator=generator, dtype=dtype)
        return one.expand(PAIRS, *sizes).to(device).contiguous()

    # In the layouts of `run`, which choose the kernel as shapes do.
    keys, values = alike(KEY_TILE, head_dim).transpose(1, 2), alike(KEY_TILE, head_dim + _SUMS)
    for other in (keys, values):
        rows = alike(1, other.shape[1]).expand(-1, num_rows, -1).contiguous()
        found = _multiply(rows, other)
        if not torch.equal(found, found[:1, :1].expand_as(found)):
            raise Unsupported(
                "engine.deterministic: on this machine equal rows of a product have other bits in "
                f"another place, for heads of {head_dim} in {str(dtype).removeprefix('torch.')}; "
                "use --no-deterministic"
            )


def _in_tiles(batch: AttentionBatch, block_size: int, num_heads: int) -> _Tiles:
    queries, keys, pairs, masks = [], [], [], []
    levels: dict[int, list[tuple[int, int]]] = {}
    starts = np.cumsum(batch.num_tokens) - batch.num_tokens
    for start, count, end, table in zip(
        starts, batch.num_tokens, batch.context_lens, batch.block_tables, strict=True
    ):
        first_key = len(keys)
        for first in range(0, int(end), KEY_TILE):
            positions = np.arange(first, first + KEY_TILE)
            known = np.minimum(positions, end - 1)
            keys.append(table[known // block_size] * block_size + known % block_size)
        for first in range(0, int(count), QUERY_TILE):
            offsets = np.minimum(np.arange(first, first + QUERY_TILE), count - 1)
            positions = end - count + offsets
            for level in range(int(positions[-1]) // KEY_TILE + 1):
                levels.setdefault(level, []).append((len(pairs), len(queries)))
                pairs.append((len(queries), first_key + level))
                at = np.arange(level * KEY_TILE, (level + 1) * KEY_TILE)
                masks.append(at > positions[:, None])
            queries.append(start + offsets)
    # So many that of all heads together there are a multiple of PAIRS; nobody asks for the rest.
    missing = -len(pairs) % (PAIRS // math.gcd(PAIRS, num_heads))
    pairs += [(0, 0)] * missing
    masks += [masks[0]] * missing
    num_tiles = -(-batch.num_tokens // QUERY_TILE)
    padding = (np.cumsum(num_tiles) - num_tiles) * QUERY_TILE - starts  # before each row
    return _Tiles(
        queries=np.stack(queries),
        keys=np.stack(keys),
        pairs=np.array(pairs).T,
        masks=np.stack(masks),
        levels=[_columns(levels[level]) for level in sorted(levels)],
        outputs=np.arange(int(batch.num_tokens.sum())) + np.repeat(padding, batch.num_tokens),
    )


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.array(pairs).T
    return first.copy(), second.copy()
