import pytest
import torch

from specserve.sampling.draft_sampler import BlockLayout, Coupled, fresh_log_noise, log_noise
from specserve.sampling.noise_table import NoiseTable

VOCAB = 50


def layout_of():
    return BlockLayout(torch.tensor([9, 11, 9]), 4, VOCAB, None)


@pytest.mark.parametrize("num_rows", [1, 6, 13, 1000])
@pytest.mark.parametrize("target_ids", [None, torch.tensor([3, 5, 8, 40])])
def test_what_is_remembered_is_what_would_be_made(num_rows, target_ids):
    columns = VOCAB if target_ids is None else 4
    table = NoiseTable(num_bytes=4 * columns * num_rows)
    source = torch.Generator().manual_seed(0)
    for _ in range(30):
        seeds, samples, first = torch.randint(3, (3, 3), generator=source)
        layout = BlockLayout(first, 4, VOCAB, target_ids)
        noise, places = table(seeds, samples, layout)
        plain, rows = fresh_log_noise(seeds, samples, layout)
        assert places.shape == rows.shape == (3, 4)
        assert torch.equal(noise[places], plain[rows])
        for slot in range(4):
            expected = log_noise(seeds, samples, first + slot, layout)
            assert torch.equal(noise[places[:, slot]], expected)


def test_draws_do_not_depend_on_the_table():
    logits = torch.randn(3, 4, VOCAB)
    keys = (torch.tensor([1.0, 0.0, 0.7]), torch.tensor([5, 6, 5]), torch.tensor([0, 0, 0]))
    table = NoiseTable()
    expected = Coupled(*keys).begin(layout_of()).draw(0, logits)
    for _ in range(3):
        drawn = Coupled(*keys, source=table).begin(layout_of()).draw(0, logits)
        assert torch.equal(drawn, expected)
