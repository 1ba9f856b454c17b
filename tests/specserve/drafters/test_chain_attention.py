"""Chains see their row and their own past, whoever else is there; one query at a time by hand."""

import pytest
import torch

from specserve.drafters.branch_attention import Entering
from specserve.drafters.chain_attention import ChainAttention
from tests.specserve.drafters.test_context import (
    DIM,
    HEADS,
    KV_HEADS,
    fill,
    make_context,
    reference,
)

NUM_PASSES = 4
CHAINS = [
    ([0], [20]),
    ([0, 0, 0], [20, 7, 20]),
    ([0, 1, 2], [20, 33, 1]),
    ([1, 0, 1], [33, 20, 30]),
    ([1, 0, 1, 2, 1], [33, 20, 12, 1, 33]),
]


class Chains:
    """Random passes, and what each token should have seen."""

    def __init__(self, rows, lengths):
        self.context, self.rows, self.lengths = make_context(), rows, lengths
        self.entries = {
            row: fill(self.context, row, count) for row, count in {0: 20, 1: 33, 2: 1}.items()
        }
        self.attention = ChainAttention(self.context, num_heads=HEADS, scale=DIM**-0.5)
        self.past = [[[] for _ in rows] for _ in range(2)]  # by layer and chain: (key, value)

    def random_pass(self, number, pads=None, num_entering=0):
        """Runs it; entering tokens are entries of row 0."""
        size = num_entering + len(self.rows)
        for layer in range(2):
            heads = slice(layer * KV_HEADS, (layer + 1) * KV_HEADS)
            q, k, v = torch.randn(size, HEADS, DIM), *torch.randn(2, size, KV_HEADS, DIM)
            if num_entering:
                for kept, new in zip(self.entries[0], (k, v), strict=True):
                    kept[-num_entering:, heads] = new[:num_entering]
            out = self.attention.run(layer, q, k, v)[num_entering:]
            own = [x[num_entering:] for x in (q, k, v)]
            for place, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
                past = self.past[layer][place]
                now = [x[place] for x in own]
                mine = [*past, now[1:]]
                keys, values = (
                    torch.cat([self.entries[row][part][:length, heads],
                               torch.stack([entry[part] for entry in mine])])
                    for part in range(2)
                )  # fmt: skip
                expected = reference(now[0][None], keys, values)[0]
                torch.testing.assert_close(out[place], expected, atol=1e-5, rtol=1e-5)
                if pads is None or number >= pads[place]:
                    past.append(now[1:])
        self.attention.advance()


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_a_chain_sees_its_own_past_in_every_layer(rows, lengths):
    chains = Chains(rows, lengths)
    chains.attention.plan(rows, lengths, NUM_PASSES)
    for number in range(NUM_PASSES):
        chains.random_pass(number)


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_padding_is_seen_by_nobody_but_itself(rows, lengths):
    chains, pads = Chains(rows, lengths), [place % 3 for place in range(len(rows))]
    chains.attention.plan(rows, lengths, NUM_PASSES, pads=torch.tensor(pads))
    for number in range(NUM_PASSES):
        chains.random_pass(number, pads)


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_tokens_that_enter_with_the_first_pass_are_seen_in_all(rows, lengths):
    # Chains of row 0 behind some, all or none of three pending tokens.
    lengths = [
        length + place % 4 if row == 0 and length == 20 else length
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True))
    ]
    chains, count = Chains(rows, lengths), 3
    chains.context.rows.append([0], [20], [count])
    room = torch.zeros(count, *chains.entries[0][0].shape[1:])
    chains.entries[0] = tuple(torch.cat([kept, room]) for kept in chains.entries[0])
    entering = Entering([0], [20], [count], [1, 2, 3])
    chains.attention.plan(rows, lengths, NUM_PASSES, entering=entering)
    for number in range(NUM_PASSES):
        chains.random_pass(number, num_entering=0 if number else count)


def test_a_token_that_is_not_finite_spoils_no_row_but_its_own():
    chains = Chains([1, 0, 1], [33, 20, 33])
    q, k, v = torch.randn(3, HEADS, DIM), *torch.randn(2, 3, KV_HEADS, DIM)

    def other_row():
        chains.attention.plan(chains.rows, chains.lengths, 1)
        return chains.attention.run(0, q, k, v)[1]  # padded, since it has one chain alone

    expected = other_row()
    k[0] = v[0] = torch.nan
    torch.testing.assert_close(other_row(), expected)
