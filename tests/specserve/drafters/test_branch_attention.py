"""Blocks and pending tokens see what they should, one query at a time by hand."""

import pytest
import torch

from specserve.drafters.branch_attention import Blocks, BranchAttention, Entering
from tests.specserve.drafters.test_context import (
    DIM,
    HEADS,
    KV_HEADS,
    fill,
    make_context,
    reference,
)

SIZE = 3


def make_attention(context):
    return BranchAttention(context, num_heads=HEADS, scale=DIM**-0.5)


def random_pass(num_tokens):
    return torch.randn(num_tokens, HEADS, DIM), *torch.randn(2, num_tokens, KV_HEADS, DIM)


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        ([0], [20]),
        ([0, 0, 0], [20, 20, 20]),
        ([0, 1, 2], [20, 33, 1]),
        ([1, 0, 1, 2, 1], [33, 20, 33, 1, 33]),
        ([0, 1, 0, 1], [20, 33, 7, 16]),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_see_their_row_and_themselves(rows, lengths, masked):
    context = make_context()
    entries = [fill(context, row, count) for row, count in ((0, 20), (1, 33), (2, 1))]
    q, k, v = random_pass(len(rows) * SIZE)
    mask = torch.zeros(len(rows), SIZE, SIZE)
    if masked:
        mask[:, 0, 2] = -torch.inf
        mask[0, 2, 1] = -torch.inf
    attention = make_attention(context)
    attention.plan(Blocks(rows, lengths, SIZE, mask if masked else None))
    for layer in range(2):
        heads = slice(layer * KV_HEADS, (layer + 1) * KV_HEADS)
        out = attention.run(layer, q, k, v)
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            part = slice(place * SIZE, (place + 1) * SIZE)
            keys = torch.cat([entries[row][0][:length, heads], k[part]])
            values = torch.cat([entries[row][1][:length, heads], v[part]])
            whole = torch.cat([torch.zeros(SIZE, length), mask[place]], dim=1)
            expected = reference(q[part], keys, values, whole)
            torch.testing.assert_close(out[part], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("entering", "rows", "lengths"),
    [
        ([(0, 4)], [0, 0, 0], [20, 22, 24]),
        ([(1, 2), (0, 4)], [0, 1, 0], [23, 35, 20]),
        ([(2, 3)], [0], [20]),  # a row that nothing is drafted for
        ([(0, 1)], [1, 0, 1, 2, 1], [33, 21, 12, 1, 33]),
    ],
)
def test_pending_tokens_become_entries_before_blocks_look_at_them(entering, rows, lengths):
    context = make_context()
    known = {0: 20, 1: 33, 2: 1}
    entries = {row: fill(context, row, count) for row, count in known.items()}
    first_rows, counts = zip(*entering, strict=True)
    starts = [known[row] for row in first_rows]
    context.rows.append(first_rows, starts, counts)
    num_first = sum(counts)
    q, k, v = random_pass(num_first + len(rows) * SIZE)
    attention = make_attention(context)
    token_ids = list(range(num_first))
    attention.plan(Blocks(rows, lengths, SIZE), Entering(first_rows, starts, counts, token_ids))
    for layer in range(2):
        heads = slice(layer * KV_HEADS, (layer + 1) * KV_HEADS)
        out = attention.run(layer, q, k, v)
        contexts = {row: (pair[0][:, heads], pair[1][:, heads]) for row, pair in entries.items()}
        at = 0
        for row, count in entering:
            part, before = slice(at, at + count), contexts[row]
            contexts[row] = torch.cat([before[0], k[part]]), torch.cat([before[1], v[part]])
            mask = torch.full((count, known[row] + count), -torch.inf).triu(known[row] + 1)
            expected = reference(q[part], *contexts[row], mask)
            torch.testing.assert_close(out[part], expected, atol=1e-5, rtol=1e-5)
            stored = context.read(row, layer)[0].transpose(0, 1)
            torch.testing.assert_close(stored, contexts[row][0])
            at += count
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            start = num_first + place * SIZE
            part = slice(start, start + SIZE)
            keys, values = (
                torch.cat([own[:length], new[part]])
                for own, new in zip(contexts[row], (k, v), strict=True)
            )
            expected = reference(q[part], keys, values)
            torch.testing.assert_close(out[part], expected, atol=1e-5, rtol=1e-5)


def test_a_token_that_is_not_finite_spoils_no_row_but_its_own():
    context = make_context()
    fill(context, 0, 20)
    fill(context, 1, 33)
    q, k, v = random_pass(3 * SIZE)
    attention = make_attention(context)
    attention.plan(Blocks([1, 0, 1], [33, 20, 33], SIZE))
    expected = attention.run(0, q, k, v)
    k[0] = v[0] = torch.nan
    found = attention.run(0, q, k, v)
    other = slice(SIZE, 2 * SIZE)  # padded, since there are fewer blocks of it
    torch.testing.assert_close(found[other], expected[other])
