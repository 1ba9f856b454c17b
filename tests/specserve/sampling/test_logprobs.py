"""Log probabilities are those of the raw logits, in a fixed order."""

import random

import pytest
import torch

from specserve.sampling import logprobs
from specserve.sampling.logprobs import token_logprobs


def random_logits(num_rows, num_tokens):
    generator = torch.Generator().manual_seed(num_tokens)
    return (4 * torch.randn(num_rows, num_tokens, generator=generator)).mul(4).round().div(4)


def test_records_equal_log_softmax_with_ties_by_lowest_id():
    rng = random.Random(0)
    logits = random_logits(30, 200)
    token_ids = [rng.randrange(200) for _ in range(30)]
    num_top = [rng.choice([0, 1, 5, 20]) for _ in range(30)]
    distribution = logits.double().log_softmax(dim=1)
    records = token_logprobs(logits, token_ids, num_top)
    for r, record in enumerate(records):
        order = sorted(range(200), key=lambda i: (-logits[r, i].item(), i))[: num_top[r]]
        assert record.token_id == token_ids[r]
        assert record.logprob == pytest.approx(distribution[r, token_ids[r]].item(), abs=1e-6)
        assert record.rank == 1 + int((distribution[r] > distribution[r, token_ids[r]]).sum())
        assert record.top_ids == order
        assert record.top_logprobs == pytest.approx(distribution[r, order].tolist(), abs=1e-6)


def test_a_record_has_the_same_bits_alone_in_a_batch_and_across_parts(monkeypatch):
    logits = random_logits(12, 77)
    together = token_logprobs(logits, list(range(12)), [r % 6 for r in range(12)])
    alone = [token_logprobs(logits[r : r + 1], [r], [r % 6])[0] for r in range(12)]
    assert alone == together
    monkeypatch.setattr(logprobs, "_MAX_ELEMENTS", 5 * 77)
    assert token_logprobs(logits, list(range(12)), [r % 6 for r in range(12)]) == together


def test_zeros_of_either_sign_tie():
    logits = torch.tensor([[-0.0, 0.0, -1.0, 0.0, 2.0]])
    (record,) = token_logprobs(logits, [3], [5])
    assert record.top_ids == [4, 0, 1, 3, 2]
    assert record.rank == 2


def test_more_alternatives_than_tokens_gives_all_of_them():
    (record,) = token_logprobs(torch.tensor([[0.0, 1.0]]), [0], [20])
    assert record.top_ids == [1, 0]


def test_what_only_pads_the_vocabulary_is_no_alternative():
    padded = torch.tensor([[0.0, 1.0, 3.0] + [-torch.inf] * 5] * 2)
    records = token_logprobs(padded, [0, 2], [20, 2])
    assert [record.top_ids for record in records] == [[2, 1, 0], [2, 1]]
    assert records == token_logprobs(padded[:, :3], [0, 2], [20, 2])
