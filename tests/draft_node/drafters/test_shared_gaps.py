"""Blocks behind beginnings of one gap are as behind a gap of their own each, and leave no trace."""

import pytest
import torch

from draft_node.branch_attention import Entering
from draft_node.drafters import compiled_passes
from draft_node.drafters.compiled_passes import CompiledPasses
from draft_node.drafters.shared_gaps import longest_gaps
from tests.specserve.model.checkpoints import LLAMA, QWEN3, load, write_checkpoint

pytest.importorskip("numba")

SIZE = 4
LENGTHS = {0: 15, 1: 33, 2: 16}  # the gap of row 0 goes into another page, that of row 2 begins one
GAP = {0: [5, 6, 7, 8], 1: [9, 3], 2: [1, 2, 3]}
# Which row, and how many tokens of its gap: as of outcomes, and of a row that has none.
BLOCKS = {
    "one row": [(0, 1), (0, 4), (0, 2), (0, 4), (0, 3)],
    "three rows": [(1, 2), (0, 3), (2, 3), (0, 1), (1, 1)],
    "without a gap, too": [(1, 0), (0, 2), (0, 0), (2, 1)],
}


@pytest.fixture(scope="module", params=[QWEN3, LLAMA], ids=["qwen3", "llama"])
def model(request, tmp_path_factory):
    return load(write_checkpoint(tmp_path_factory.mktemp("model"), request.param))


def passes_of(model, num_tokens=512):
    passes = CompiledPasses(model, num_tokens=num_tokens, longest=16)
    rows, counts = list(LENGTHS), list(LENGTHS.values())
    passes.context.rows.append(rows, [0] * len(rows), counts)
    tokens = random_tokens(model, sum(counts)).tolist()
    passes.enter(Entering(rows, [0] * len(rows), counts, tokens))
    return passes


def random_tokens(model, count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(model.config.vocab_size, (count,), generator=generator)


def hidden_of(passes, model, blocks, min_gap=0):
    rows = [row for row, _ in blocks]
    gaps = [GAP[row][:taken] for row, taken in blocks]
    ids = random_tokens(model, SIZE * len(blocks)).view(-1, SIZE)
    lengths = [LENGTHS[row] for row in rows]
    return passes.blocks(rows, lengths, ids, None, gaps, min_gap).clone()


def counted(passes, monkeypatch):
    """How many tokens each forward has, from now on."""
    counts, run = [], passes._forward.run
    monkeypatch.setattr(passes._forward, "run", lambda ids: counts.append(len(ids)) or run(ids))
    return counts


def close(found, expected):
    """Sums over what lies in pages of a block's own are made apart, hence the last bits."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def unshared(monkeypatch):
    monkeypatch.setattr(compiled_passes, "longest_gaps", lambda *_: None)


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_blocks_are_as_behind_gaps_of_their_own(model, blocks, monkeypatch):
    passes = passes_of(model)
    counts = counted(passes, monkeypatch)
    found = hidden_of(passes, model, blocks)
    unshared(monkeypatch)
    close(found, hidden_of(passes, model, blocks))
    in_common = {row: max(taken for other, taken in blocks if other == row) for row, _ in blocks}
    assert counts[0] == SIZE * len(blocks) + sum(in_common.values())
    assert counts[1] > counts[0]


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_rows_are_what_they_were(model, blocks):
    passes, rows = passes_of(model), list(LENGTHS)
    contexts, layers = passes.context, range(model.config.num_layers)
    tables = [contexts.rows.table(row).tolist() for row in rows]
    entries = [[x.clone() for x in contexts.read(row, layer)] for row in rows for layer in layers]
    free = len(contexts.rows._free)
    hidden_of(passes, model, blocks)
    assert [contexts.rows.length(row) for row in rows] == list(LENGTHS.values())
    assert [contexts.rows.table(row).tolist() for row in rows] == tables
    assert len(contexts.rows._free) == free
    kept = [contexts.read(row, layer) for row in rows for layer in layers]
    for found, expected in zip(kept, entries, strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_without_pages_each_block_has_its_own(model, monkeypatch):
    """One is left, and rows 0 and 2 would need one each."""
    blocks = BLOCKS["three rows"]
    expected = hidden_of(passes_of(model), model, blocks)
    small = passes_of(model)
    del small.context.rows._free[1:]
    counts = counted(small, monkeypatch)
    close(hidden_of(small, model, blocks), expected)
    assert counts == [len(blocks) * (SIZE + 3)]
    assert len(small.context.rows._free) == 1


def test_a_pass_that_fails_takes_its_tokens_along(model, monkeypatch):
    passes = passes_of(model)

    def fail(_):
        raise RuntimeError("broken")

    monkeypatch.setattr(passes._forward, "run", fail)
    with pytest.raises(RuntimeError, match="broken"):
        hidden_of(passes, model, BLOCKS["three rows"])
    assert [passes.context.rows.length(row) for row in LENGTHS] == list(LENGTHS.values())


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_a_least_gap_makes_passes_equally_long(model, monkeypatch, taken):
    """The work of the rejection family tells nothing of what its outcomes accept."""
    passes, blocks = passes_of(model), [(0, taken), (0, 1), (1, min(taken, 2))]
    counts = counted(passes, monkeypatch)
    found = hidden_of(passes, model, blocks, min_gap=6)
    assert counts == [SIZE * len(blocks) + 2 * 6]
    assert torch.equal(found, hidden_of(passes, model, blocks))


@pytest.mark.parametrize(
    ("rows", "lengths", "gaps"),
    [
        ([0, 0], [15, 15], [[5, 6], [5, 7]]),
        ([0, 0], [15, 15], [[6], [5, 7]]),
        ([0, 0], [15, 14], [[5], [5]]),
        ([0, 1], [15, 33], [[], []]),
    ],
    ids=["another end", "another beginning", "behind a part of the row", "none"],
)
def test_what_is_not_in_common_is_not_shared(model, rows, lengths, gaps):
    assert longest_gaps(passes_of(model).context.rows, rows, lengths, gaps) is None


def test_gaps_of_rows_are_their_longest():
    found = longest_gaps(_Rows(), [7, 3, 7], [20, 5, 20], [(1,), (2, 3), (1, 4)])
    assert found == Entering(rows=[7, 3], starts=[20, 5], counts=[2, 2], token_ids=[1, 4, 2, 3])


class _Rows:
    def length(self, row):
        return {7: 20, 3: 5}[row]
