import pytest
import torch

from draft_node.shared_noise import NoiseTable
from specserve.decoding.drawing import BlockLayout, Coupled, log_noise

VOCAB = 50


def layout_of(target_ids=None):
    return BlockLayout(torch.tensor([9, 11, 9]), 4, VOCAB, target_ids)


@pytest.mark.parametrize("num_rows", [1, 6, 13, 1000])
@pytest.mark.parametrize("target_ids", [None, torch.tensor([3, 5, 8, 40])])
def test_what_is_remembered_is_what_would_be_made(num_rows, target_ids):
    layout = layout_of(target_ids)
    columns = VOCAB if target_ids is None else 4
    table = NoiseTable(num_bytes=4 * columns * num_rows)
    source = torch.Generator().manual_seed(0)
    for _ in range(30):
        seeds, samples, positions = torch.randint(3, (3, 6), generator=source)
        noise, rows = table(seeds, samples, positions, layout)
        assert torch.equal(noise[rows], log_noise(seeds, samples, positions, layout))


def test_draws_do_not_depend_on_the_table():
    logits = torch.randn(3, 4, VOCAB)
    keys = (torch.tensor([1.0, 0.0, 0.7]), torch.tensor([5, 6, 5]), torch.tensor([0, 0, 0]))
    table = NoiseTable()
    expected = Coupled(*keys).begin(layout_of()).draw(0, logits)
    for _ in range(3):
        drawn = Coupled(*keys, source=table).begin(layout_of()).draw(0, logits)
        assert torch.equal(drawn, expected)
