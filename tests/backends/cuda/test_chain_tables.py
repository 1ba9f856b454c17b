"""What the tables of chains say each token sees, against the words of their definition."""

import random

import numpy as np
import pytest
import torch

from specserve.backends.cuda.chain_tables import ChainTables, num_own_pages
from specserve.drafters.context import ContextRows
from specserve.models.kv_cache import NULL_BLOCK, CacheShape, KVCache

PAGE, NUM_PAGES = 4, 60


def kept_in(pool: np.ndarray, table: np.ndarray, length: int) -> list[int]:
    return pool[table].ravel()[:length].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_a_token_sees_its_row_s_prefix_and_its_own_chain(seed: int):
    """A pool of names in place of keys: token t of row r is 1000 r + t, chain c's -(1000 c + t)."""
    source = random.Random(seed)
    for _ in range(100):
        pages = np.array(source.sample(range(1, NUM_PAGES), NUM_PAGES - 1))
        tables = [pages[:7], pages[7:14], pages[14:21]]
        pool = np.full((NUM_PAGES, PAGE), 999_999)
        pool[NULL_BLOCK] = 0
        for row, table in enumerate(tables):
            pool[table] = (1000 * (row + 1) + np.arange(7 * PAGE)).reshape(-1, PAGE)
        rows = [source.randrange(3) for _ in range(source.randint(1, 5))]
        lengths = [source.randint(0, 7 * PAGE) for _ in rows]
        num_passes = source.randint(1, 9)
        pads = [source.randint(0, 2) for _ in rows] if source.random() < 0.5 else None
        count = num_own_pages(lengths, num_passes, PAGE)
        chains = ChainTables.of(
            lengths,
            [tables[row] for row in rows],
            num_passes,
            own_pages=pages[21 : 21 + count],
            page_size=PAGE,
            pads=pads,
        )
        before = pool[pages[:21]].copy()
        pool[chains.own_pages] = pool[chains.sources]
        for number in range(num_passes):
            batch = chains.batch(number)
            slots = batch.slots(PAGE)
            assert len(set(slots.tolist())) == len(rows)
            pool.ravel()[slots] = [-(1000 * (place + 1) + number) for place in range(len(rows))]
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                first = 0 if pads is None else min(pads[place], number)
                own = [-(1000 * (place + 1) + each) for each in range(first, number + 1)]
                expected = [1000 * (row + 1) + each for each in range(length)] + own
                end = int(batch.context_lens[place])
                assert kept_in(pool, batch.block_tables[place], end) == expected
                assert batch.positions()[place] == length + len(own) - 1
        assert np.array_equal(pool[pages[:21]], before)  # rows keep what they have


def test_pages_begin_with_what_is_copied_and_nothing_else():
    shape = CacheShape(
        num_layers=2, num_kv_heads=3, head_dim=2, num_blocks=6, block_size=4, num_spare_blocks=1
    )
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"))
    for kept in (cache.keys, cache.values):
        kept.copy_(torch.randn(kept.shape))
        kept[:, :, :4] = 0
    before = cache.read(1, torch.arange(7))
    cache.keys[:, :, 12:16] = torch.nan  # what another has left there
    cache.copy_blocks(np.array([2, NULL_BLOCK]), np.array([3, 6]))
    cache.copy_blocks(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for found, expected in zip(cache.read(1, torch.arange(7)), before, strict=True):
        places = torch.tensor([0, 1, 2, 2, 4, 5, 0])
        wanted = expected.unflatten(1, (7, 4))[:, places].flatten(1, 2)
        assert torch.equal(found, wanted)


def test_unused_pages_are_no_row_s_and_stay_free():
    rows = ContextRows(6)
    rows.reserve([0], [0], [20])  # two pages of sixteen
    found = rows.unused(3)
    assert found is not None
    assert not set(found.tolist()) & {NULL_BLOCK, *rows.table(0).tolist()}
    assert rows.unused(4) is None
    rows.reserve([1], [0], [48])
    assert rows.unused(0) is not None
    assert rows.unused(1) is None
