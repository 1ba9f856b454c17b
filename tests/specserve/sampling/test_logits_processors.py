"""Drafts under a request's own sampling parameters: the target's distribution of the same logits,
and nobody else's.
"""

import pytest
import torch

from specserve.noise import OnceKeys
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_sampler import BlockLayout, Coupled, Sampled
from specserve.sampling.logits_processors import with_processors
from specserve.sampling.sampling import sample, target_probs
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams

VOCAB, SLOTS = 60, 5
PROMPT = [3, 3, 8, 21, 40]
FIELDS: list[dict] = [
    {"top_p": 0.7},
    {"top_k": 6},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.02},
    {"logit_bias": {7: 4.0, 8: -100.0, 9: 2.5}},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0, "frequency_penalty": 1.5},
    {"stop_token_ids": (4, 5), "min_tokens": 3, "top_k": 9},
    {"logit_bias": {7: 1.0}, "frequency_penalty": 1.0, "top_p": 0.6, "temperature": 0.7},
    {"repetition_penalty": 1.5, "temperature": 0.0},
    {},
]


def states_of(fields: list[dict], per_field: int) -> list[SamplingState]:
    return [
        SamplingState(
            SamplingParams(**{"temperature": 1.0, "max_tokens": 50} | some),
            seed=1000 * place + number,
            prompt_token_ids=PROMPT,
        )
        for place, some in enumerate(fields)
        for number in range(per_field)
    ]


def layout_of(states: list[SamplingState], target_ids=None) -> BlockLayout:
    positions = torch.tensor([state.position for state in states])
    return BlockLayout(positions, SLOTS, VOCAB, target_ids)


def temperatures_of(states: list[SamplingState]) -> torch.Tensor:
    return torch.tensor([0.0 if s.is_greedy else s.temperature for s in states])


def coupled(states: list[SamplingState]) -> Coupled:
    seeds = torch.tensor([state.seed_bits for state in states])
    return Coupled(temperatures_of(states), seeds, torch.zeros_like(seeds))


def sampled(states: list[SamplingState], num_kept: int = VOCAB) -> Sampled:
    zeros = [0] * len(states)
    seeds = [state.seed_bits for state in states]
    keys = OnceKeys.build(seeds, zeros, zeros, zeros, zeros)
    return Sampled(temperatures_of(states), keys, num_kept)


def spread_logits(states: list[SamplingState]) -> torch.Tensor:
    torch.manual_seed(0)
    logits = torch.randn(len(states), SLOTS, VOCAB) * 2
    logits[:, :, 4] += 3  # a token that min_tokens holds back is likely
    return logits


@pytest.mark.parametrize("fields", FIELDS, ids=lambda some: "+".join(some) or "none")
def test_equal_logits_give_the_token_that_the_target_would_draw_all_along_the_block(fields):
    states = states_of([fields], 40)
    logits = spread_logits(states)
    sampling = with_processors(coupled(states), states).begin(layout_of(states))
    for slot in range(SLOTS):
        drawn = sampling.draw(slot, logits[:, slot : slot + 1].clone())[:, 0]
        expected = sample(logits[:, slot], SamplingBatch.build(states)).token_ids
        assert torch.equal(drawn, expected)
        for state, token_id in zip(states, expected.tolist(), strict=True):
            state.append(token_id)


@pytest.mark.parametrize("fields", FIELDS, ids=lambda some: "+".join(some) or "none")
def test_the_distribution_that_is_shipped_is_the_targets_distribution_of_equal_logits(fields):
    states = states_of([fields], 8)
    logits = spread_logits(states)
    sampling = with_processors(sampled(states), states).begin(layout_of(states))
    expected, drawn = [], []
    for slot in range(SLOTS):
        expected.append(target_probs(logits[:, slot], SamplingBatch.build(states)))
        drawn.append(sampling.draw(slot, logits[:, slot : slot + 1].clone())[:, 0])
        for state, token_id in zip(states, drawn[-1].tolist(), strict=True):
            state.append(token_id)
    draft_probs = sampling.draft_probs()
    assert draft_probs is not None
    assert bool(draft_probs.sound(VOCAB).all())
    found = -draft_probs.subtracted_from(torch.zeros(len(states) * SLOTS, VOCAB))
    torch.testing.assert_close(found, torch.stack(expected, dim=1).flatten(0, 1))
    assert bool((draft_probs.at(torch.stack(drawn, dim=1).flatten()) > 0).all())


def test_rows_of_one_batch_do_not_feel_each_other():
    states = states_of(FIELDS, 3)
    logits = spread_logits(states)
    sampling = with_processors(coupled(states), states).begin(layout_of(states))
    together = sampling.draw(0, logits[:, :1].clone())
    for place, state in enumerate(states):
        alone = with_processors(coupled([state]), [state]).begin(layout_of([state]))
        assert torch.equal(alone.draw(0, logits[place : place + 1, :1])[0], together[place])


def test_a_block_drawn_at_once_is_cut_in_every_slot():
    states = states_of([{"top_k": 3, "logit_bias": {11: -100.0}}, {}], 6)
    logits = spread_logits(states)
    logits[:, :, 11] = 9
    sampling = with_processors(sampled(states), states).begin(layout_of(states))
    drawn = sampling.draw(0, logits)
    draft_probs = sampling.draft_probs()
    assert draft_probs is not None
    sizes = (draft_probs.probs > 0).sum(dim=1).view(len(states), SLOTS)
    assert bool((sizes[:6] == 3).all())
    assert bool((sizes[6:] == VOCAB).all())
    assert bool((drawn[:6] != 11).all())
    assert bool((drawn[6:] == 11).any())


def test_columns_of_a_reduced_vocabulary_are_edited_by_their_target_ids():
    target_ids = torch.arange(1, VOCAB, 2)
    states = states_of([{"logit_bias": {7: 100.0, 8: 100.0}}], 4)
    logits = torch.zeros(4, 1, len(target_ids))
    sampling = with_processors(sampled(states, 4), states).begin(layout_of(states, target_ids))
    assert sampling.draw(0, logits).tolist() == [[7]] * 4


def test_a_nucleus_beyond_the_candidates_is_left_whole():
    states = states_of([{"top_p": 0.9}, {"top_k": 700}], 2)
    flat = torch.zeros(4, 1, 1024)
    layout = BlockLayout(torch.tensor([5] * 4), 1, 1024, None)
    sampling = with_processors(sampled(states, 1024), states).begin(layout)
    sampling.draw(0, flat)
    draft_probs = sampling.draft_probs()
    assert draft_probs is not None
    assert (draft_probs.probs > 0).sum(dim=1).tolist() == [1024] * 4


def test_requests_without_such_fields_are_drawn_for_as_ever_and_states_are_left_alone():
    plain = states_of([{}, {"temperature": 0.0, "top_p": 0.5}], 2)
    sampler = coupled(plain)
    assert with_processors(sampler, plain) is sampler  # truncation changes nothing at temperature 0
    states = states_of([{"repetition_penalty": 1.5}], 2)
    sampling = with_processors(coupled(states), states).begin(layout_of(states))
    sampling.draw(0, spread_logits(states))
    assert [state.num_generated for state in states] == [0, 0]
    assert all(state.penalties is not None and len(state.penalties.ids) == 4 for state in states)
