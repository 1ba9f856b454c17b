import pytest
import torch

from draft_node.training.blocks import BlockShape, cut_blocks, draw_anchors

SHAPE = BlockShape(size=4, mask_token_id=99, max_gap=3)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def all_learned(num_rows: int, length: int) -> torch.Tensor:
    return torch.ones(num_rows, length + 1, dtype=torch.bool)


def test_anchors_stand_before_what_is_learned_as_long_as_there_are_enough():
    is_learned = torch.zeros(50, 25, dtype=torch.bool)
    is_learned[:, 9:13] = True  # labels of the anchors 8 to 11
    anchors, _ = draw_anchors(is_learned, 3, SHAPE, seeded())
    assert int(anchors.min()) == 8
    assert int(anchors.max()) == 11
    anchors, _ = draw_anchors(is_learned, 5, SHAPE, seeded())
    assert all({8, 9, 10, 11} < set(row) for row in anchors.tolist())


def test_anchors_are_distinct_sorted_and_have_context_and_labels():
    anchors, gaps = draw_anchors(all_learned(50, 24), 8, SHAPE, seeded())
    assert anchors.shape == gaps.shape == (50, 8)
    assert bool((anchors.diff(dim=1) > 0).all())
    assert int(anchors.min()) == 1
    assert int(anchors.max()) == 24 - 4
    assert bool((anchors - gaps >= 1).all())


def test_every_anchor_is_taken_where_there_are_few():
    anchors, _ = draw_anchors(all_learned(1, 8), 100, SHAPE, seeded())
    assert anchors.tolist() == [[1, 2, 3, 4]]
    with pytest.raises(ValueError, match="rows of 4 tokens hold no block of 4"):
        draw_anchors(all_learned(1, 4), 1, SHAPE, seeded())


def test_a_quarter_of_the_gaps_is_zero_and_the_rest_uniform():
    anchors, gaps = draw_anchors(all_learned(400, 256), 32, SHAPE, seeded())
    counts = torch.bincount(gaps[anchors > 3], minlength=4).double()
    torch.testing.assert_close(
        counts / counts.sum(), torch.full((4,), 0.25).double(), atol=0.01, rtol=0
    )
    assert not draw_anchors(all_learned(4, 64), 8, BlockShape(4, 99), seeded())[1].any()


def test_a_block_reads_what_stands_before_it_and_predicts_what_follows():
    tokens = torch.arange(100, 120)[None]
    blocks = cut_blocks(tokens, torch.tensor([[7]]), torch.tensor([[2]]), SHAPE)
    assert blocks.token_ids.tolist() == [[[0, 105, 106, 107, 99, 99, 99]]]
    assert blocks.positions.tolist() == [[[4, 5, 6, 7, 8, 9, 10]]]
    assert blocks.context_lens.tolist() == [[5]]
    assert blocks.labels.tolist() == [[[108, 109, 110, 111]]]
    assert blocks.previous_ids.tolist() == [[[107, 108, 109, 110]]]
    assert blocks.sources.tolist() == [[[7, 8, 9, 10]]]
    assert bool(blocks.valid.all())


def test_gap_tokens_see_each_other_causally_and_the_block_sees_them():
    tokens = torch.arange(100, 120)[None]
    visible = cut_blocks(tokens, torch.tensor([[7]]), torch.tensor([[2]]), SHAPE).visible[0, 0]
    rows = ["".join("x" if seen else "." for seen in row) for row in visible.tolist()]
    assert rows == ["x......", ".x.....", ".xx....", *[".xxxxxx"] * 4]


def test_labels_end_at_the_first_that_is_not_supervised_and_at_the_end_of_the_row():
    tokens = torch.arange(100, 120)[None]
    supervised = torch.ones(1, 20, dtype=torch.bool)
    supervised[0, 9] = False
    anchors, gaps = torch.tensor([[7, 17]]), torch.zeros(1, 2, dtype=torch.int64)
    blocks = cut_blocks(tokens, anchors, gaps, SHAPE, supervised)
    assert blocks.valid.tolist() == [[[True, False, False, False], [True, True, False, False]]]
