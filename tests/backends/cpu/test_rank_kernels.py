"""Candidates ranked in one call are those of a sort, whatever else is among the numbers."""

import numpy as np
import pytest
import torch

from draft_node.prespeculation import outcomes
from draft_node.prespeculation.outcomes import NO_TOKEN, SlotNoise, rank_all
from specserve.backends.cpu import rank_kernels
from specserve.backends.cpu.rank_kernels import NO_ROW, rank_slots

pytest.importorskip("numba")


def test_they_are_usable():
    assert rank_kernels.are_usable()


def ranked(scores, noise, rows, excluded, count):
    shape = len(scores), count
    found, best = np.empty(shape, np.int64), np.empty(shape, np.float32)
    rank_slots(scores, noise, np.array(rows), np.array(excluded), found, best)
    return found, best


@pytest.mark.parametrize("num_tokens", [1, 5, 63, 64, 65, 500, 4096])
def test_the_best_come_first_and_of_equals_the_first(num_tokens):
    rng = np.random.default_rng(num_tokens)
    scores = rng.integers(-3, 4, (4, num_tokens)).astype(np.float32)  # many are equal
    noise = rng.integers(0, 3, (2, num_tokens)).astype(np.float32)
    rows, excluded = [0, NO_ROW, 1, 1], [0, NO_TOKEN, num_tokens - 1, NO_TOKEN]
    count = min(32, num_tokens)
    found, best = ranked(scores, noise, rows, excluded, count)
    for slot in range(4):
        values = scores[slot] - (noise[rows[slot]] if rows[slot] >= 0 else 0)
        if excluded[slot] >= 0:
            values[excluded[slot]] = -np.inf
        expected = np.argsort(-values, kind="stable")[:count]
        there = values[expected] > -np.inf
        assert found[slot][there].tolist() == expected[there].tolist()
        assert best[slot].tolist() == values[expected].tolist()


def test_what_is_no_number_is_never_ranked_and_hides_nothing():
    scores = np.arange(200, dtype=np.float32)[None].repeat(2, 0)
    scores[0, [3, 70, 199]] = np.nan
    scores[1] = np.nan
    found, best = ranked(scores, scores[:1], [NO_ROW, NO_ROW], [NO_TOKEN, NO_TOKEN], 5)
    assert found[0].tolist() == [198, 197, 196, 195, 194]
    assert (best[1] == -np.inf).all()


@pytest.mark.parametrize("target_ids", [None, torch.arange(90) * 3 + 1])
def test_both_ways_rank_alike(target_ids, monkeypatch):
    torch.manual_seed(0)
    scores, noise = torch.randn(3, 90), torch.randn(5, 90)
    shared = torch.tensor([True, False, True])
    keys = torch.zeros(3, dtype=torch.int64)
    slots = SlotNoise(keys, keys, keys, shared)
    excluded = torch.tensor([7, NO_TOKEN, 10])
    race = noise, torch.tensor([4, 0, 2])
    found = [rank_all(scores.clone(), target_ids, race, slots, excluded, 100)]
    monkeypatch.setattr(outcomes.rank_kernels, "are_usable", lambda: False)
    found.append(rank_all(scores.clone(), target_ids, race, slots, excluded, 100))
    assert found[0].tolist() == found[1].tolist()
    assert (found[0] != NO_TOKEN).sum(1).tolist() == [89, 90, 89]  # but for what was rejected
    assert not (found[0] == excluded.numpy()[:, None])[[0, 2]].any()
