from dataclasses import replace

import pytest
import torch

from specserve.backends.cpu.self_test import SMALL
from specserve.drafters.context import BLOCK_SIZE, ContextRows, torch_context
from specserve.errors import Exhausted

HEADS, KV_HEADS, DIM = 4, 2, 8


def make_context(num_tokens=256, num_layers=2):
    spec = replace(
        SMALL, num_real_layers=num_layers, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM
    )
    return torch_context(spec, num_tokens, dtype=torch.float32, device=torch.device("cpu"))


def fill(context, row, count):
    """Append random entries; returns keys and values [count, layers * kv_heads, dim]."""
    shape = (count, context.cache.num_layers * KV_HEADS, DIM)
    keys, values = torch.randn(shape), torch.randn(shape)
    slots = context.rows.append([row], [context.rows.length(row)], [count])
    context.write(slots, keys, values)
    return keys, values


def reference(q, keys, values, mask=None):
    """q [T, heads, dim] over keys and values [L, kv_heads, dim], one head at a time."""
    out = torch.empty_like(q)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        scores = q[:, head] @ keys[:, kv].T * DIM**-0.5
        if mask is not None:
            scores = scores + mask
        out[:, head] = scores.softmax(-1) @ values[:, kv]
    return out


def test_appended_entries_are_read_back_per_layer_and_row():
    context = make_context()
    first, second = fill(context, 7, 20), fill(context, 9, 5)
    more = fill(context, 7, 3)
    for layer in range(2):
        heads = slice(layer * KV_HEADS, (layer + 1) * KV_HEADS)
        keys, values = context.read(7, layer)
        assert torch.equal(keys, torch.cat([first[0], more[0]])[:, heads].transpose(0, 1))
        assert torch.equal(values, torch.cat([first[1], more[1]])[:, heads].transpose(0, 1))
        assert torch.equal(context.read(9, layer)[0], second[0][:, heads].transpose(0, 1))


def test_truncated_positions_are_overwritten_and_pages_come_back():
    context = make_context(num_tokens=4 * BLOCK_SIZE)
    kept, _ = fill(context, 0, 4 * BLOCK_SIZE)
    with pytest.raises(Exhausted):
        fill(context, 1, 1)
    context.rows.truncate(0, BLOCK_SIZE + 3)
    fill(context, 1, 2 * BLOCK_SIZE)
    new, _ = fill(context, 0, 2)
    expected = torch.cat([kept[: BLOCK_SIZE + 3], new])[:, :KV_HEADS].transpose(0, 1)
    assert torch.equal(context.read(0, 0)[0], expected)


def test_pages_are_neither_lost_nor_shared_over_a_long_life():
    rows, generator = ContextRows(33), torch.Generator().manual_seed(2)
    lengths: dict[int, int] = {}

    def pick(limit):
        return int(torch.randint(limit, (), generator=generator))

    for _ in range(600):
        row, action = pick(6), pick(4)
        length = lengths.get(row, 0)
        if action < 2:
            count = 1 + pick(40)
            try:
                assert len(rows.append([row], [length], [count])) == count
            except Exhausted:
                continue
            lengths[row] = length + count
        elif action == 2:
            lengths[row] = pick(length + 1)
            rows.truncate(row, lengths[row])
        else:
            rows.free(row)
            lengths.pop(row, None)
        pages = [page for row in lengths for page in rows.table(row)]
        assert len(set(pages)) == len(pages)
        assert 0 not in pages
        assert all(rows.length(row) == lengths[row] for row in lengths)
        assert all(len(rows.table(row)) == -(-lengths[row] // BLOCK_SIZE) for row in lengths)
    for row in list(lengths):
        rows.free(row)
    try:
        rows.append([0], [0], [32 * BLOCK_SIZE])
    except Exhausted:
        pytest.fail("not every page is free again")


def test_an_update_that_does_not_fit_changes_nothing():
    rows = ContextRows(3)
    rows.append([0], [0], [BLOCK_SIZE])
    with pytest.raises(Exhausted, match="2 pages needed, 1 free"):
        rows.append([0, 1], [BLOCK_SIZE, 0], [1, 1])
    assert rows.length(0) == BLOCK_SIZE
    assert rows.length(1) == 0
    with pytest.raises(ValueError, match="ends at 16, not at 17"):
        rows.append([0], [17], [1])
    with pytest.raises(ValueError, match="twice"):
        rows.append([1, 1], [0, 0], [1, 1])
    with pytest.raises(ValueError, match="has 16 positions, not 17"):
        rows.truncate(0, 17)


def test_a_page_is_given_to_another_row_without_what_it_held():
    context = make_context(num_tokens=4 * BLOCK_SIZE)
    slots = context.rows.append([0], [0], [4 * BLOCK_SIZE])
    flat = context.cache.flat_slots(torch.from_numpy(slots))
    broken = torch.full((len(slots), KV_HEADS, DIM), torch.nan)
    for layer in range(2):
        context.cache.write(layer, flat, broken, broken)  # as pending tokens are
    context.rows.truncate(0, BLOCK_SIZE)
    context.rows.append([1], [0], [BLOCK_SIZE])
    assert context.read(0, 0)[0].isnan().all()
    for layer in range(2):
        assert not any(entries.any() for entries in context.read(1, layer))
