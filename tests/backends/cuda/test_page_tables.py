"""Tables of pages against the reference's attention: any rows, any pages, padded and not."""

import random

import numpy as np
import pytest
import torch

from specserve.backends.cuda.flash_shape import FlashShape
from specserve.backends.cuda.page_tables import PageTables
from specserve.backends.torch.attention import TorchAttention
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK
from tests.backends.cuda.layouts import NUM_BLOCKS, Pool, random_batch
from tests.backends.cuda.paged_reference import attend

NUM_LAYOUTS = 1500
POOLS = [(1, 1, 3), (3, 2, 1), (4, 2, 4), (16, 1, 2), (16, 2, 3)]  # page size, kv heads, ratio


def check(pool: Pool, batch: AttentionBatch) -> PageTables:
    """The tables of the shape that holds it give what the reference finds; its own begin them."""
    cache, num_tokens = pool.cache, int(batch.num_tokens.sum())
    q, k, v = pool.tokens(num_tokens)
    plain = TorchAttention(cache, num_heads=q.shape[1], deterministic=False)
    plain.plan(batch)
    expected = plain.run(0, q, k, v)  # the new tokens' keys and values are in the pool now

    tables = PageTables.of_batch(batch, cache.block_size)
    shape = FlashShape.of(batch, cache.block_size)
    assert shape is not None
    padded = tables.padded(shape.num_rows, shape.num_tokens)
    assert (padded.num_rows, padded.num_queries) == (shape.num_rows, shape.num_tokens)
    assert shape.num_rows <= shape.num_tokens
    assert shape.is_decode == padded.is_decode == tables.is_decode
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "last_page_len"):
        own = getattr(tables, name)
        assert np.array_equal(getattr(padded, name)[: len(own)], own)
    first = torch.cat([q, q[:1].expand(shape.num_tokens - num_tokens, -1, -1)])
    pages, causal = cache.pages(0), not shape.is_decode
    found, sums = attend(first, *pages, padded, causal=causal, scale=plain.scale)
    torch.testing.assert_close(found[:num_tokens], expected, atol=1e-5, rtol=1e-5)
    assert (found[num_tokens:] == 0).all()  # of the null block's zeros, and finite
    assert sums.isfinite().all()
    return padded


def test_many_layouts_attend_as_the_reference_does():
    source, seen = random.Random(0), {"empty rows": 0, "decode": 0, "shared": 0, "padded": 0}
    pools = [Pool.of(*sizes) for sizes in POOLS]
    for _ in range(NUM_LAYOUTS):
        pool = source.choice(pools)
        batch = random_batch(source, pool.cache.block_size)
        padded = check(pool, batch)
        firsts = [int(table[0]) for table in batch.block_tables]
        seen["shared"] += len(set(firsts)) < len(firsts)
        seen["decode"] += padded.is_decode
        seen["empty rows"] += bool((np.diff(padded.kv_indptr) == 0).any())
        seen["padded"] += NULL_BLOCK in padded.kv_indices
    assert min(seen.values()) > NUM_LAYOUTS / 10, seen


def tables_of(counts: list[int], ends: list[int], page_size: int = 4) -> PageTables:
    firsts = np.cumsum([0, *(-(-end // page_size) for end in ends)])[:-1]
    tables = [np.arange(first + 1, first + 99) for first in firsts.tolist()]
    return PageTables.of(counts, ends, tables, page_size)


def test_tables_by_hand():
    """Pages of 4: a row that fills its last one, a row of one key, a row that has neither."""
    tables = tables_of([3, 1, 0], [8, 1, 0])
    assert tables.qo_indptr.tolist() == [0, 3, 4, 4]
    assert tables.kv_indptr.tolist() == [0, 2, 3, 3]
    assert tables.kv_indices.tolist() == [1, 2, 3]
    assert tables.last_page_len.tolist() == [4, 1, 0]
    arrays = (tables.qo_indptr, tables.kv_indptr, tables.kv_indices, tables.last_page_len)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert (tables.num_rows, tables.num_queries, tables.num_pages) == (3, 4, 3)
    assert not tables.is_decode


def test_padding_by_hand():
    """Six queries pad: they are the last row, over two pages of zeros; a row between is empty."""
    padded = tables_of([3, 1], [8, 1]).padded(4, 10)
    assert padded.qo_indptr.tolist() == [0, 3, 4, 4, 10]
    assert padded.kv_indptr.tolist() == [0, 2, 3, 3, 5]
    assert padded.kv_indices.tolist() == [1, 2, 3, NULL_BLOCK, NULL_BLOCK]
    assert padded.last_page_len.tolist() == [4, 1, 0, 2]
    decode = tables_of([1, 1, 1], [9, 1, 4]).padded(4, 4)
    assert decode.is_decode
    assert decode.last_page_len.tolist() == [1, 1, 4, 1]
    same = decode.padded(4, 4)
    assert same.kv_indices.tolist() == decode.kv_indices.tolist()
    assert tables_of([1], [1]).padded(8, 8).qo_indptr.tolist() == list(range(9))


@pytest.mark.parametrize(("num_rows", "num_queries"), [(1, 9), (2, 3), (2, 5)])
def test_what_does_not_fit_is_refused(num_rows: int, num_queries: int):
    with pytest.raises(ValueError, match=r"2 rows with 4 queries do not fit"):
        tables_of([3, 1], [8, 1]).padded(num_rows, num_queries)


def test_pages_are_a_view_of_the_pool():
    """Whatever is written by slot is read by page, and nothing is copied."""
    pool = Pool.of(4, 2, 1)
    keys, values = pool.cache.pages(0)
    assert keys.shape == (2 * NUM_BLOCKS, 2, 4, 4)
    assert keys.untyped_storage().data_ptr() == pool.cache.keys.untyped_storage().data_ptr()
    assert keys.stride() == values.stride()
    entries = torch.randn(2, 2, 4)
    flat = pool.cache.flat_slots(torch.tensor([7, 2 * NUM_BLOCKS * 4 - 1]))
    pool.cache.write(0, flat, entries, -entries)
    assert torch.equal(keys[1, :, 3], entries[0])
    assert torch.equal(values[-1, :, -1], -entries[1])
