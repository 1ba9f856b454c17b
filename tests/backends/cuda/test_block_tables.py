"""Two levels of tables for draft blocks, against attention under a mask and the reference's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from specserve.backends.cuda.block_tables import BlockTables, num_own_pages, num_trunks
from specserve.backends.cuda.flash_shape import padded_rows
from specserve.backends.cuda.graphs import bucket_of
from specserve.drafters.branch_attention import Blocks, BranchAttention
from specserve.drafters.context import Context, ContextRows
from specserve.models.kv_cache import KVCache
from tests.backends.cuda.layouts import NUM_BLOCKS, Pool
from tests.backends.cuda.paged_reference import attend, merged

NUM_LAYOUTS = 1000
POOLS = [(1, 1, 2), (3, 2, 1), (4, 1, 4), (16, 2, 3)]  # page size, kv heads, ratio


@dataclass(frozen=True)
class Branches:
    """Blocks of `size` tokens behind gaps, behind prefixes of some rows."""

    rows: list[int]
    lengths: list[int]
    gaps: list[int]
    size: int
    tables: list[np.ndarray]  # of each block's row

    def laid_out(self, cache: KVCache) -> BlockTables:
        return BlockTables.of(
            self.rows,
            self.lengths,
            self.gaps,
            self.size,
            tables=self.tables,
            first_page=cache.num_blocks,
            page_size=cache.block_size,
        )


def random_branches(source: random.Random, page_size: int) -> Branches:
    order = list(range(1, NUM_BLOCKS))
    source.shuffle(order)
    contexts = []
    for _ in range(source.randint(1, 3)):
        length = source.randint(1, 30)
        contexts.append((length, np.array([order.pop() for _ in range(-(-length // page_size))])))
    rows, lengths = [], []
    alike = source.random() < 0.5  # whether branches of a row stand behind all of it
    for row in source.choices(range(len(contexts)), k=source.randint(1, 6)):
        rows.append(row)
        lengths.append(contexts[row][0] if alike else source.randint(1, contexts[row][0]))
    if source.random() < 0.7:
        rows, lengths = map(list, zip(*sorted(zip(rows, lengths, strict=True)), strict=True))
    longest = source.choice([0, 0, 1, 5])
    gaps = [source.randint(0, longest) for _ in rows]
    return Branches(rows, lengths, gaps, source.randint(1, 6), [contexts[row][1] for row in rows])


def attended(cache: KVCache, found: BlockTables, tokens: Sequence[Tensor], scale: float) -> Tensor:
    """As the two kernels and their merging would, padded as a captured shape is."""
    q, k, v = tokens
    num_tokens = bucket_of(len(q))
    cache.write(0, cache.flat_slots(torch.from_numpy(found.slots)), k, v)
    padding = q[:1].expand(num_tokens - len(q), -1, -1)
    pages, parts = cache.pages(0), []
    for level in (found.own, found.trunks):
        padded = level.padded(padded_rows(level.num_rows, num_tokens), num_tokens)
        parts += attend(torch.cat([q, padding]), *pages, padded, causal=False, scale=scale)
    results, sums = merged(*parts)
    assert results.isfinite().all()
    assert sums.isfinite().all()
    return results[: len(q)]


def under_masks(
    cache: KVCache, branches: Branches, tokens: Sequence[Tensor], scale: float
) -> Tensor:
    """Block by block: the context, then the gap causally, then the block, which sees all of it."""
    found, at = [], 0
    for length, gap, table in zip(branches.lengths, branches.gaps, branches.tables, strict=True):
        own = slice(at, at + gap + branches.size)
        q, k, v = (x[own].transpose(0, 1) for x in tokens)
        kept = cache.read(0, torch.from_numpy(table))
        keys, values = (
            torch.cat([old[:, :length], new], dim=1).repeat_interleave(len(q) // len(k), dim=0)
            for old, new in zip(kept, (k, v), strict=True)
        )
        places = torch.arange(gap + branches.size)
        sees = (places <= places[:, None]) | (places >= gap)[:, None]
        sees = torch.cat([torch.ones(len(places), length, dtype=torch.bool), sees], dim=1)
        attention = torch.nn.functional.scaled_dot_product_attention
        found.append(attention(q, keys, values, sees, scale=scale).transpose(0, 1))
        at = own.stop
    return torch.cat(found)


def test_many_branches_see_what_a_mask_would_let_them_see():
    source, shared, apart = random.Random(1), 0, 0
    pools = [Pool.of(*sizes) for sizes in POOLS]
    for _ in range(NUM_LAYOUTS):
        pool = source.choice(pools)
        cache = pool.cache
        branches = random_branches(source, cache.block_size)
        found = branches.laid_out(cache)
        tokens = pool.tokens(len(found.positions))
        expected = under_masks(cache, branches, tokens, 0.4)
        results = attended(cache, found, tokens, 0.4)
        torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-5)
        assert found.trunks.num_rows == num_trunks(branches.rows, branches.lengths)
        shared += found.trunks.num_rows < len(branches.rows)
        apart += len(set(branches.lengths)) > 1
    assert min(shared, apart) > NUM_LAYOUTS / 5


@pytest.mark.parametrize("mask", [False, True])
def test_blocks_see_what_the_reference_s_do(mask: bool):
    """Without gaps, and with gaps as blocks of which some tokens see less."""
    pool = Pool.of(16, 2, 3)
    rows = ContextRows(NUM_BLOCKS)
    rows.reserve([5, 9], [0, 0], [40, 17])
    context = Context(pool.cache, NUM_BLOCKS)
    context.rows = rows
    order, gap, size = [5, 5, 9, 5], 2 if mask else 0, 4
    branches = Branches(order, [40, 40, 17, 33], [gap] * 4, size, [rows.table(r) for r in order])
    places = torch.arange(gap + size)
    hidden = (places > places[:, None]) & (places < gap)[:, None]
    plain = BranchAttention(context, num_heads=6, scale=0.3)
    added = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).expand(4, -1, -1)
    plain.plan(Blocks(order, branches.lengths, gap + size, added))
    tokens = pool.tokens(4 * (gap + size))
    found = branches.laid_out(pool.cache)
    results = attended(pool.cache, found, tokens, 0.3)
    torch.testing.assert_close(results, plain.run(0, *tokens), atol=1e-5, rtol=1e-5)
    assert found.trunks.num_rows == 3  # two branches beside each other read one trunk


def test_tables_by_hand():
    """Pages of 4: two branches behind 5 positions of a row, the second one behind a gap of 2."""
    table = np.array([9, 7])
    tables = BlockTables.of(
        [3, 3], [5, 5], [0, 2], 3, tables=[table, table], first_page=50, page_size=4
    )
    trunks, own = tables.trunks, tables.own
    assert trunks.qo_indptr.tolist() == [0, 8]
    assert trunks.kv_indices.tolist() == [9, 7]
    assert trunks.last_page_len.tolist() == [1]
    assert own.qo_indptr.tolist() == [0, 3, 4, 5, 8]
    assert own.kv_indptr.tolist() == [0, 1, 2, 3, 5]
    assert own.kv_indices.tolist() == [50, 51, 51, 51, 52]
    assert own.last_page_len.tolist() == [3, 1, 2, 1]
    assert tables.positions.tolist() == [5, 6, 7, 5, 6, 7, 8, 9]
    assert tables.slots.tolist() == [200, 201, 202, 204, 205, 206, 207, 208]
    assert tables.own_tokens.tolist() == [0, 1, 2, 5, 6, 7]
    assert num_own_pages([0, 2], 3, 4) == 3
    assert num_trunks([3, 3, 2, 3], [5, 4, 4, 5]) == 4
