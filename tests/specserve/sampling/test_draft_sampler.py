"""Draws of the rejection family: by the distribution that is shipped, and by noise used once."""

import pytest
import torch

from specserve.noise import OnceKeys, Purpose
from specserve.sampling.draft_sampler import BlockLayout, Sampled

VOCAB, SLOTS, KEPT = 50, 3, 12
TEMPERATURES = torch.tensor([1.0, 0.5, 1.7, 0.0])


def keys_of(num_blocks: int) -> OnceKeys:
    numbers, zeros = list(range(num_blocks)), [0] * num_blocks
    return OnceKeys.build([7 + n for n in numbers], zeros, numbers, numbers, zeros)


def drawn(logits: torch.Tensor, temperatures: torch.Tensor, num_kept: int = KEPT):
    """Tokens [B, G], and probabilities [B, G, V] of the distributions that came with them."""
    num_blocks = len(logits)
    layout = BlockLayout(torch.arange(num_blocks) + 20, SLOTS, VOCAB, None)
    draws = Sampled(temperatures, keys_of(num_blocks), num_kept).begin(layout)
    slots = [draws.draw(slot, logits[:, slot : slot + 1].clone()) for slot in range(SLOTS)]
    draft_probs = draws.draft_probs()
    assert draft_probs is not None
    assert bool(draft_probs.sound(VOCAB).all())
    probs = -draft_probs.subtracted_from(torch.zeros(num_blocks * SLOTS, VOCAB))
    return torch.cat(slots, dim=1), probs.view(num_blocks, SLOTS, VOCAB), draws


def test_a_distribution_is_the_likeliest_tokens_at_the_rows_temperature():
    logits = 3 * torch.randn(4, SLOTS, VOCAB, generator=torch.Generator().manual_seed(0))
    _, probs, _ = drawn(logits, TEMPERATURES)
    for place, temperature in enumerate(TEMPERATURES.tolist()):
        for slot in range(SLOTS):
            kept = logits[place, slot].topk(KEPT)
            scaled = kept.values / max(temperature, 1e-9)
            expected = torch.zeros(VOCAB).scatter(0, kept.indices, scaled.softmax(0))
            torch.testing.assert_close(probs[place, slot], expected, atol=1e-6, rtol=1e-4)


def test_tokens_are_drawn_by_their_slots_own_noise():
    logits = torch.randn(4, SLOTS, VOCAB, generator=torch.Generator().manual_seed(1))
    tokens, probs, draws = drawn(logits, TEMPERATURES)
    for place in range(4):
        for slot in range(SLOTS):
            ids = probs[place, slot].nonzero().squeeze(1)  # ascending, as a distribution has them
            times = draws.noise[place, slot, : len(ids)] / probs[place, slot, ids]
            assert tokens[place, slot] == ids[times.argmin()]


def test_noise_belongs_to_block_and_position():
    keys = keys_of(2)
    layout = BlockLayout(torch.tensor([20, 31]), SLOTS, VOCAB, None)
    noise = Sampled(torch.ones(2), keys, KEPT).begin(layout).noise
    for block, first in enumerate((20, 31)):
        for slot in range(SLOTS):
            one = keys.at(torch.tensor([block]))
            own = OnceKeys(
                one.nonces, torch.tensor([first + slot]), one.sample_words, one.branch_words
            )
            assert torch.equal(noise[block, slot], own.exponential(Purpose.DRAFT, KEPT)[0])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_have_the_distribution_that_is_shipped(temperature: float):
    """Chi-square at a false-alarm rate of 1e-6."""
    num_blocks, one = 4000, torch.tensor([0.0, 1.0, 2.0, -1.0])
    logits = torch.full((num_blocks, SLOTS, VOCAB), -20.0)
    logits[:, :, 10:14] = one
    tokens, probs, _ = drawn(logits, torch.full((num_blocks,), temperature), num_kept=4)
    expected = num_blocks * SLOTS * probs[0, 0, 10:14].double()
    counts = torch.bincount(tokens.flatten(), minlength=VOCAB)[10:14].double()
    assert counts.sum() == num_blocks * SLOTS
    assert ((counts - expected) ** 2 / expected).sum() < 30.7
