"""Caches of keys and values: what is written to slots is read from their blocks."""

import numpy as np
import pytest
import torch

from specserve.backends.cpu.kv_cache import TiledKVCache
from specserve.models.kv_cache import CacheShape, KVCache

KEPT = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("kv_dtype", KEPT)
@pytest.mark.parametrize("block_size", [1, 4, 6, 8, 16, 24, 32, 48])
def test_what_is_written_to_slots_is_read_from_their_blocks(block_size, kv_dtype):
    sizes = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 5, "num_blocks": 7}
    cache = TiledKVCache(CacheShape(**sizes, block_size=block_size), dtype=kv_dtype)
    slots = np.random.default_rng(0).permutation(7 * block_size)[: 4 * block_size]
    keys, values = torch.randn(2, len(slots), 2, 3, 5)
    expected = torch.zeros(2, 2, 3, 7 * block_size, 5)  # keys and values, by slot
    for kept, entries in zip(expected, (keys, values), strict=True):
        kept[:, :, slots] = entries.permute(1, 2, 0, 3).to(kv_dtype).float()
    cache.write_layers(slots, keys, values)
    blocks = torch.tensor([5, 0, 3, 3])
    places = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
    for layer in range(2):
        for found, kept in zip(cache.read(layer, blocks), expected, strict=True):
            assert torch.equal(found, kept[layer][:, places])


def test_tiles_are_in_one_block():
    for block_size, tile in ((1, 1), (16, 16), (24, 8), (6, 2), (64, 16)):
        sizes = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 4, "num_blocks": 3}
        assert TiledKVCache(CacheShape(**sizes, block_size=block_size)).tile == tile


@pytest.mark.parametrize("kv_dtype", KEPT)
def test_what_is_gathered_is_what_was_rounded(kv_dtype):
    shape = CacheShape(num_layers=2, num_kv_heads=3, head_dim=5, num_blocks=7, block_size=4)
    cache = KVCache(shape, dtype=torch.float32, device=torch.device("cpu"), kept_dtype=kv_dtype)
    keys, values = torch.randn(2, 4, 2, 3, 5)
    cache.write_layers(np.arange(8, 12), keys, values)
    for layer in range(2):
        found = cache.read(layer, torch.tensor([2]))
        for numbers, entries in zip(found, (keys, values), strict=True):
            assert numbers.dtype == torch.float32
            assert torch.equal(numbers, entries[:, layer].transpose(0, 1).to(kv_dtype).float())
    assert cache.keys.dtype == cache.kept_dtype == kv_dtype
