"""Flat tokens in buckets: what a captured forward attends with, on this machine's own tensors."""

import random

import numpy as np
import pytest
import torch

from specserve.backends.cuda.graphs import BUCKETS, bucket_of
from specserve.backends.cuda.padded_attention import (
    MOST_PADDED_KEYS,
    MOST_ROW_TOKENS,
    TILE,
    PaddedAttention,
    PaddedShape,
)
from specserve.backends.torch.attention import TorchAttention
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import CacheShape, KVCache

CPU = torch.device("cpu")
KV_HEADS, HEAD_DIM, NUM_BLOCKS = 2, 16, 400
NEAR = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def cache_of(block_size: int, dtype: torch.dtype) -> KVCache:
    """Whatever is kept is random, and the null block zeros."""
    shape = CacheShape(
        num_layers=1,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_blocks=NUM_BLOCKS,
        block_size=block_size,
    )
    cache, generator = KVCache(shape, dtype=dtype, device=CPU), torch.Generator().manual_seed(3)
    for kept in (cache.keys, cache.values):
        kept.copy_(torch.randn(kept.shape, generator=generator))
        kept[:, :, :block_size] = 0  # the null block
    return cache


def batch_of(counts: list[int], ends: list[int], block_size: int, seed: int = 0) -> AttentionBatch:
    """Rows of so many new tokens, in blocks all over the pool."""
    order = np.random.default_rng(seed).permutation(np.arange(1, NUM_BLOCKS))
    sizes = [-(-end // block_size) for end in ends]
    tables = np.split(order, np.cumsum(sizes))[: len(sizes)]
    return AttentionBatch(np.array(counts), np.array(ends), tables)


def attended(
    batch: AttentionBatch, *, block_size: int, per_kv: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, PaddedShape]:
    """By flat tokens in a bucket and by the reference; both caches are checked to be equal."""
    num_heads, num_tokens = per_kv * KV_HEADS, int(batch.num_tokens.sum())
    generator = torch.Generator().manual_seed(num_tokens)
    sizes = [(num_tokens, heads, HEAD_DIM) for heads in (num_heads, KV_HEADS, KV_HEADS)]
    q, k, v = (torch.randn(size, generator=generator).to(dtype) for size in sizes)

    plain = TorchAttention(cache_of(block_size, dtype), num_heads=num_heads, deterministic=False)
    plain.plan(batch)
    expected = plain.run(0, q, k, v)

    shape = PaddedShape.of(batch, block_size)
    assert shape is not None
    cache = cache_of(block_size, dtype)
    padded = PaddedAttention(cache, num_heads=num_heads, shape=shape)
    padded.fill(batch)
    padded.begin()
    found = padded.unpadded(padded.run(0, *(x.index_select(0, padded.sources) for x in (q, k, v))))
    padded.end()
    torch.testing.assert_close(cache.keys, plain.cache.keys, atol=0, rtol=0)
    torch.testing.assert_close(cache.values, plain.cache.values, atol=0, rtol=0)
    return found, expected, shape


RAGGED = [
    ([8, 1, 1, 1, 1, 1, 1, 1], [40, 5, 130, 1, 7, 99, 16, 17]),  # one row's block is verified
    ([1, 1, 1], [129, 1, 64]),  # nobody's is
    ([3, 8, 1, 5], [3, 300, 128, 5]),  # two rows begin
    ([16, 1, 7], [500, 16, 7]),
    ([17, 32, 2], [17, 200, 9]),  # rows of two tiles
    ([1], [1]),
]


@pytest.mark.parametrize("per_kv", [1, 3])
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize(("counts", "ends"), RAGGED)
def test_ragged_rows_attend_as_the_reference_does(counts, ends, block_size, per_kv):
    batch = batch_of(counts, ends, block_size)
    found, expected, _ = attended(batch, block_size=block_size, per_kv=per_kv)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", NEAR)
def test_many_ragged_batches(dtype):
    source = random.Random(7)
    tiles = set()
    for seed in range(40):
        most = source.choice([1, 4, 8, MOST_ROW_TOKENS])
        counts = [source.randint(1, most) for _ in range(source.randint(1, 12))]
        ends = [count + source.choice([0, source.randrange(300)]) for count in counts]
        batch = batch_of(counts, ends, 16, seed)
        found, expected, shape = attended(batch, block_size=16, per_kv=2, dtype=dtype)
        torch.testing.assert_close(found, expected, atol=NEAR[dtype], rtol=NEAR[dtype])
        tiles.add(shape.tile)
    assert tiles == {1, TILE}


def test_keys_are_copied_once_a_row(monkeypatch):
    """Whatever its tokens are: 4 rows of 8 tokens read 4 contexts, not 32."""
    copied = []
    gather = KVCache.gather

    def spy(self, layer, flat_blocks, room):
        copied.append(len(flat_blocks) * self.block_size // self.num_kv_heads)
        gather(self, layer, flat_blocks, room)

    batch = batch_of([8] * 4, [200, 256, 140, 130], 16)
    monkeypatch.setattr(KVCache, "gather", spy)
    _, _, shape = attended(batch, block_size=16, per_kv=2)
    assert shape == PaddedShape(num_tokens=32, num_tiles=4, num_keys=256, tile=TILE)
    assert copied[-1] == 4 * 256


def shape_of(counts: list[int], ends: list[int], block_size: int = 16) -> PaddedShape | None:
    return PaddedShape.of(AttentionBatch(np.array(counts), np.array(ends), []), block_size)


def test_tokens_of_all_rows_are_padded_together():
    """Verify lengths 7, 0, 0 ... are 15 tokens; a rectangle of rows would have 64."""
    shape = shape_of([8] + [1] * 7, [90] * 8)
    assert shape == PaddedShape(num_tokens=16, num_tiles=8, num_keys=128, tile=TILE)
    assert shape_of([1] * 8, [90] * 8) == PaddedShape(8, 8, 128, 1)
    assert shape_of([2] * 8, [90] * 8) == PaddedShape(16, 8, 128, TILE)  # as many: the same graph


@pytest.mark.parametrize(
    ("counts", "ends", "shape"),
    [
        ([1], [1], (1, 1, 128, 1)),
        ([1], [129], (1, 1, 256, 1)),
        ([3, 1, 8], [300, 4, 9], (16, 4, 512, TILE)),
        ([17], [17], (24, 2, 128, TILE)),
        ([32], [32], (32, 2, 128, TILE)),
        ([33], [33], None),
        ([1, 33], [1, 33], None),
        ([16] * 64, [16] * 64, (1024, 64, 128, TILE)),
        ([16] * 64 + [1], [16] * 65, None),
        ([1] * 64, [1024] * 64, (64, 64, 1024, 1)),
        ([1] * 64, [1025] * 64, None),
        ([1] * 33, [1] * 33, (40, 40, 128, 1)),
    ],
)
def test_the_least_shape_of_few(counts: list, ends: list, shape: tuple | None):
    assert shape_of(counts, ends) == (None if shape is None else PaddedShape(*shape))


def test_keys_are_whole_blocks():
    assert shape_of([1], [1], 48) == PaddedShape(1, 1, 144, 1)
    assert shape_of([1], [1], 1024) == PaddedShape(1, 1, 1024, 1)


def test_a_batch_that_has_a_shape_has_the_least_bucket():
    source = random.Random(1)
    for _ in range(3000):
        counts = [source.randint(1, 24) for _ in range(source.randint(1, 90))]
        shape = shape_of(counts, [count + source.randrange(900) for count in counts])
        if shape is None:
            continue
        assert shape.num_tokens == min(edge for edge in BUCKETS if edge >= sum(counts))
        assert shape.num_tiles >= len(counts)
        assert shape.num_tiles * shape.num_keys <= MOST_PADDED_KEYS


def test_buckets():
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert all(edge % 8 == 0 for edge in BUCKETS if edge > 4)
    for count in range(1, BUCKETS[-1] + 1):
        edge = bucket_of(count)
        assert edge in BUCKETS
        assert edge >= count
        if count > 32:
            assert (edge - count) / edge < 0.2, count
    assert bucket_of(BUCKETS[-1] + 1) == 2048  # of what is no forward
