"""Candidates against the distribution they come from, and against the noise that the target will
use.
"""

import numpy as np
import pytest
import torch

from draft_node.prespeculation.outcomes import (
    NO_TOKEN,
    OutcomeKind,
    SlotNoise,
    outcome_weights,
    rank_all,
    rank_candidates,
)
from specserve.drafters.slot_scores import SlotScores
from specserve.noise import Purpose, exponential_noise
from tests.specserve.sampling.random_probs import likeliest_probs

VOCAB, NUM_SLOTS = 300, 5


def logits_of(seed=0, num_slots=NUM_SLOTS):
    return 3 * torch.randn(num_slots, VOCAB, generator=torch.Generator().manual_seed(seed))


def noise_of(num_slots=NUM_SLOTS, *, is_shared):
    return SlotNoise(
        seeds=torch.full((num_slots,), 77),
        sample_indices=torch.full((num_slots,), 2),
        positions=torch.arange(40, 40 + num_slots),
        is_shared=torch.full((num_slots,), is_shared),
    )


def nothing_excluded(num_slots=NUM_SLOTS):
    return torch.full((num_slots,), NO_TOKEN)


def test_without_noise_candidates_are_the_likeliest_tokens():
    logits = logits_of()
    slots = SlotScores.of_logits(logits, torch.ones(NUM_SLOTS), 64)
    found = rank_candidates(slots, noise_of(is_shared=False), nothing_excluded(), 8)
    assert (found == logits.topk(8).indices.numpy()).all()


def test_the_rejected_token_is_no_candidate():
    logits = logits_of()
    slots = SlotScores.of_logits(logits, torch.ones(NUM_SLOTS), 64)
    rejected = logits.topk(3).indices[:, 1].clone()
    rejected[4] = NO_TOKEN
    found = rank_candidates(slots, noise_of(is_shared=False), rejected, 2)
    best = logits.topk(3).indices.numpy()
    assert (found[:4] == best[:4][:, [0, 2]]).all()
    assert (found[4] == best[4, :2]).all()


@pytest.mark.parametrize("temperature", [0.5, 1.3])
def test_with_shared_noise_the_first_candidate_wins_the_race_the_target_runs(temperature):
    logits = logits_of()
    scales = torch.full((NUM_SLOTS,), 1 / temperature)
    slots = SlotScores.of_logits(logits, scales, VOCAB)
    noise = noise_of(is_shared=True)
    found = rank_candidates(slots, noise, nothing_excluded(), 4)
    output_noise = exponential_noise(
        noise.seeds, noise.sample_indices, noise.positions, Purpose.OUTPUT, VOCAB
    )
    winners = (output_noise / (logits / temperature).softmax(1)).topk(4, largest=False).indices
    assert (found == winners.numpy()).all()


def test_distributions_and_logits_give_the_same_order():
    logits = logits_of()
    draft_probs = likeliest_probs((logits / 0.7).softmax(1), 64)
    scales = torch.full((NUM_SLOTS,), 1 / 0.7)
    for is_shared in (False, True):
        noise = noise_of(is_shared=is_shared)
        by_probs = rank_candidates(SlotScores.of_probs(draft_probs), noise, nothing_excluded(), 6)
        by_logits = rank_candidates(
            SlotScores.of_logits(logits, scales, 64), noise, nothing_excluded(), 6
        )
        assert (by_probs == by_logits).all()


def test_noise_beyond_the_next_token_has_no_say():
    slots = SlotScores.of_logits(logits_of(), torch.ones(NUM_SLOTS), 64)
    noise = noise_of(is_shared=True)
    found = rank_candidates(slots, noise, nothing_excluded(), 8)
    one = slice(0, 1)
    alone = rank_candidates(
        SlotScores(slots.ids[one], slots.scores[one]),
        SlotNoise(
            noise.seeds[one], noise.sample_indices[one], noise.positions[one], noise.is_shared[one]
        ),
        nothing_excluded(1),
        8,
    )
    assert (alone[0] == found[0]).all()


def test_padding_is_never_a_candidate():
    draft_probs = likeliest_probs(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.4, 0.3, 0.2, 0.1]]), 4)
    found = rank_candidates(
        SlotScores.of_probs(draft_probs),
        noise_of(2, is_shared=True),
        torch.tensor([0, NO_TOKEN]),
        6,
    )
    assert found[0].tolist() == [1, *[NO_TOKEN] * 5]
    assert sorted(found[1].tolist()) == [NO_TOKEN, NO_TOKEN, 0, 1, 2, 3]


def test_a_reduced_vocabulary_speaks_in_ids_of_the_target():
    logits, ids = logits_of()[:, :10], torch.arange(100, 110)
    slots = SlotScores.of_logits(logits, torch.ones(NUM_SLOTS), 10, ids)
    found = rank_candidates(slots, noise_of(is_shared=False), nothing_excluded(), 1)
    assert (found[:, 0] == 100 + logits.argmax(1).numpy()).all()


def test_slots_of_different_widths_are_ranked_together():
    wide = SlotScores.of_logits(logits_of(0, 2), torch.ones(2), 32)
    narrow = SlotScores.of_logits(logits_of(1, 1)[:, :3], torch.ones(1), 8)
    joined = SlotScores.joined([wide, narrow])
    found = rank_candidates(joined, noise_of(3, is_shared=True), nothing_excluded(3), 5)
    assert (found[:2] != NO_TOKEN).all()
    assert (found[2, 3:] == NO_TOKEN).all()
    assert sorted(found[2, :3].tolist()) == [0, 1, 2]


def test_weights_are_the_distribution_of_the_number_accepted():
    weights = outcome_weights([0.9, 0.5, 0.2], 3, 4)
    assert weights == pytest.approx([0.1, 0.45, 0.36, 0.09])
    assert outcome_weights([0.9, 0.5], 1, 2) == pytest.approx([0.1, 0.9])
    assert outcome_weights([], 0, 1) == pytest.approx([1.0])
    assert outcome_weights([0.5] * 3, 3, 1) == pytest.approx([0.5])
    assert (outcome_weights([1.5, -1.0], 2, 3) == np.array([0.0, 1.0, 0.0])).all()


def test_rows_at_temperature_zero_are_greedy_under_any_method():
    for method in ("rejection", "foreseeable", "coupled"):
        assert OutcomeKind.of(method, 0.0) is OutcomeKind.GREEDY
        assert OutcomeKind.of(method, 0.7) == method
    with pytest.raises(ValueError, match="nonsense"):
        OutcomeKind.of("nonsense", 1.0)


def test_where_every_token_takes_part_the_order_is_that_of_sampling():
    """Shared noise counts for the slots that have it; what was rejected is no candidate."""
    generator = torch.Generator().manual_seed(0)
    scores, noise = torch.randn(2, 4, 30, generator=generator)
    rows, is_shared = torch.tensor([2, 0, 1, 3]), torch.tensor([True, True, False, True])
    excluded = torch.tensor([5, NO_TOKEN, 7, 29])
    zeros = torch.zeros(4, dtype=torch.int64)
    slots = SlotNoise(zeros, zeros, zeros, is_shared)
    found = rank_all(scores, None, (noise, rows), slots, excluded, 6)
    for slot in range(4):
        times = scores[slot] - noise[rows[slot]] if is_shared[slot] else scores[slot].clone()
        if excluded[slot] != NO_TOKEN:
            times[excluded[slot]] = -torch.inf
        assert found[slot].tolist() == times.argsort(descending=True)[:6].tolist()


def test_where_every_token_runs_a_reduced_vocabulary_speaks_in_ids_of_the_target():
    target_ids = torch.tensor([3, 8, 11, 20])
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).repeat(3, 1)
    output_noise = torch.zeros(1, 4), torch.zeros(3, dtype=torch.int64)
    zeros = torch.zeros(3, dtype=torch.int64)
    slots = SlotNoise(zeros, zeros, zeros, torch.zeros(3, dtype=torch.bool))
    excluded = torch.tensor([8, NO_TOKEN, 9])  # 9 is none of the draft's tokens
    found = rank_all(scores, target_ids, output_noise, slots, excluded, 5)
    assert found[0].tolist() == [3, 11, 20, NO_TOKEN, NO_TOKEN]
    assert found[1].tolist() == found[2].tolist() == [3, 8, 11, 20, NO_TOKEN]


def test_what_is_no_number_is_no_candidate():
    scores = torch.arange(200.0).repeat(2, 1)
    scores[0, [3, 70, 199]] = torch.nan
    scores[1] = torch.nan
    zeros = torch.zeros(2, dtype=torch.int64)
    slots = SlotNoise(zeros, zeros, zeros, torch.zeros(2, dtype=torch.bool))
    output_noise, nothing = (scores[:1], zeros), torch.full((2,), NO_TOKEN)
    found = rank_all(scores, None, output_noise, slots, nothing, 5)
    assert found[0].tolist() == [198, 197, 196, 195, 194]
    assert (found[1] == NO_TOKEN).all()
