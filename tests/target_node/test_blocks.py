"""The block pool: references, prefix cache, eviction."""

import random

import pytest

from target_node.blocks import BlockPool


def sealed_prompt(pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """Compute and seal the full blocks of `tokens`, as the scheduler does."""
    blocks = pool.allocate(pool.num_blocks_for(len(tokens)))
    parent = pool.root(salt)
    for index in range(len(tokens) // pool.block_size):
        start = index * pool.block_size
        parent = pool.child(parent, tokens[start : start + pool.block_size])
        pool.seal(blocks[index], parent)
    return blocks


def match(pool: BlockPool, tokens: list[int], salt: str) -> tuple[list[int], list[bytes]]:
    """Take the longest cached prefix: its blocks and their hashes."""
    hashes: list[bytes] = []
    blocks = pool.find(tokens, salt, hashes)
    free = pool.num_free_without(blocks)
    pool.take(blocks)
    assert pool.num_free == free
    return blocks, hashes[: len(blocks)]


def test_a_released_prefix_is_found_again_and_its_last_token_is_left_to_compute():
    pool = BlockPool(9, 4, prefix_cache=True)
    tokens = list(range(12))
    blocks = sealed_prompt(pool, tokens)
    pool.release(blocks)
    assert pool.num_free == 8
    found, hashes = match(pool, tokens, "")
    assert found == blocks[:2]
    assert len(hashes) == 2
    longer, _ = match(pool, [*tokens, 99], "")
    assert longer == blocks


def test_prefixes_are_not_shared_between_salts_nor_after_a_different_token():
    pool = BlockPool(9, 4, prefix_cache=True)
    sealed_prompt(pool, list(range(8)), salt="a")
    assert match(pool, [*range(8), 1], "b") == ([], [])
    assert match(pool, [7, *range(1, 8), 1], "a") == ([], [])
    assert len(match(pool, [*range(4), 9, 9, 9, 9, 9], "a")[0]) == 1


def test_two_pools_give_the_same_prefix_different_hashes():
    first, second = (BlockPool(3, 4, prefix_cache=True) for _ in range(2))
    assert first.root("") != second.root("")


def test_eviction_takes_the_tail_of_the_least_recently_used_prefix_first():
    pool = BlockPool(5, 4, prefix_cache=True)
    old = sealed_prompt(pool, list(range(8)))
    new = sealed_prompt(pool, list(range(100, 108)))
    pool.release(old)
    pool.release(new)
    assert pool.allocate(1) == [old[1]]
    assert match(pool, [*range(9)], "")[0] == [old[0]]


def test_forgotten_blocks_are_never_matched_and_return_to_the_free_list():
    pool = BlockPool(5, 4, prefix_cache=True)
    blocks = sealed_prompt(pool, list(range(8)))
    pool.forget(blocks)
    pool.release(blocks)
    assert match(pool, list(range(9)), "") == ([], [])
    assert pool.num_cached == 0
    assert pool.num_free == 4


def test_releasing_twice_and_taking_too_many_are_errors():
    pool = BlockPool(3, 4, prefix_cache=True)
    blocks = pool.allocate(2)
    with pytest.raises(RuntimeError, match="asked for 1"):
        pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release(blocks)


def test_a_random_history_never_gives_one_block_to_two_owners_and_never_leaks():
    rng = random.Random(1)
    pool = BlockPool(33, 4, prefix_cache=True)
    owned: list[list[int]] = []
    for _ in range(3000):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 30))]
        found, _ = match(pool, prompt, "")
        missing = pool.num_blocks_for(len(prompt)) - len(found)
        if missing > pool.num_free:
            pool.release(found)
        else:
            fresh = pool.allocate(missing)
            assert not set(fresh) & {block for blocks in owned for block in blocks}
            assert not set(fresh) & set(found)
            blocks = found + fresh
            parent = pool.root("")
            for index in range(len(prompt) // 4):
                parent = pool.child(parent, prompt[index * 4 : index * 4 + 4])
                pool.seal(blocks[index], parent)
            owned.append(blocks)
        if owned and rng.random() < 0.5:
            pool.release(owned.pop(rng.randrange(len(owned))))
    for blocks in owned:
        pool.release(blocks)
    assert pool.num_free == 32
