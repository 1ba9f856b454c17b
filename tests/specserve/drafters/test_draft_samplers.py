import pytest
import torch

from specserve.noise import OnceKeys, seed_bits
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import PAD_ID
from specserve.sampling.draft_sampler import BlockLayout, Coupled, Greedy, Sampled
from specserve.sampling.sampling import sample
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams

VOCAB = 50


def layout(num_blocks=3, num_slots=4, target_ids=None):
    positions = torch.arange(num_blocks) * 10 + 7
    return BlockLayout(positions, num_slots, VOCAB, target_ids)


def once_keys(num_blocks, nonces=None):
    zeros = [0] * num_blocks
    return OnceKeys.build(nonces or [3] * num_blocks, zeros, zeros, range(num_blocks), zeros)


def test_greedy_takes_the_lowest_of_the_likeliest():
    logits = torch.zeros(2, 3, VOCAB)
    logits[:, :, [9, 4]] = 1
    sampling = Greedy().begin(layout(2, 3))
    assert sampling.draw(0, logits).tolist() == [[4] * 3] * 2
    assert sampling.draft_probs() is None


def test_coupled_draws_what_the_target_would_draw_from_the_same_logits():
    torch.manual_seed(0)
    num_blocks, num_slots = 60, 5
    logits = torch.randn(num_blocks, num_slots, VOCAB) * 2
    temperatures = torch.tensor([0.0, 0.5, 1.0, 1.5]).repeat(num_blocks // 4)
    seeds = [2**63 + 5 * block for block in range(num_blocks)]
    where = layout(num_blocks, num_slots)
    sampler = Coupled(
        temperatures,
        torch.tensor([seed_bits(s) for s in seeds]),
        torch.zeros(num_blocks, dtype=torch.int64),
    )
    sampling = sampler.begin(where)
    drawn = torch.cat(
        [sampling.draw(slot, logits[:, slot : slot + 1]) for slot in range(num_slots)], 1
    )

    for slot in range(num_slots):
        states = []
        for block in range(num_blocks):
            params = SamplingParams(temperature=float(temperatures[block]), max_tokens=10**6)
            prompt = [0] * (int(where.positions[block]) + slot)
            states.append(SamplingState(params, seed=seeds[block], prompt_token_ids=prompt))
        expected = sample(logits[:, slot], SamplingBatch.build(states)).token_ids
        assert torch.equal(drawn[:, slot], expected)


def test_coupled_noise_belongs_to_target_ids_and_absolute_positions():
    torch.manual_seed(1)
    ids = torch.randperm(VOCAB)[:20].sort().values
    seeds, samples = torch.tensor([5, 5]), torch.zeros(2, dtype=torch.int64)
    sampler = Coupled(torch.ones(2), seeds, samples)
    narrow, wide = torch.randn(2, 4, 20), torch.full((2, 4, VOCAB), -1e9)
    wide[..., ids] = narrow
    whole = sampler.begin(layout(2)).draw(0, wide)
    assert torch.equal(sampler.begin(layout(2, target_ids=ids)).draw(0, narrow), whole)
    # Two blocks that overlap in positions share the noise there, whatever their slots.
    shifted = BlockLayout(torch.tensor([7, 9]), 4, VOCAB, None)
    same = wide[:1].expand(2, -1, -1).clone()
    same[0, 2:], same[1, :2] = wide[0, 0], wide[0, 0]
    drawn = sampler.begin(shifted).draw(0, same)
    assert torch.equal(drawn[0, 2:], drawn[1, :2])


@pytest.mark.parametrize("by_slot", [True, False])
def test_the_shipped_distribution_is_the_truncated_softmax_and_holds_every_draw(by_slot):
    torch.manual_seed(2)
    logits = torch.randn(3, 4, VOCAB) * 2
    temperatures = torch.tensor([1.0, 0.0, 0.6])
    sampling = Sampled(temperatures, once_keys(3), num_kept=6).begin(layout())
    if by_slot:
        parts = [sampling.draw(slot, logits[:, slot : slot + 1]) for slot in range(4)]
        drawn = torch.cat(parts, dim=1)
    else:
        drawn = sampling.draw(0, logits)
    draft_probs = sampling.draft_probs()

    assert draft_probs is not None
    assert bool(draft_probs.sound(VOCAB).all())
    for block in range(3):
        for slot in range(4):
            row, place = logits[block, slot].double(), block * 4 + slot
            expected = torch.zeros(VOCAB, dtype=torch.float64)
            top = row.topk(6).indices
            if temperatures[block] == 0:
                expected[top[0]] = 1
            else:
                expected[top] = (row[top] / temperatures[block].double()).softmax(0)
            real = draft_probs.ids[place] != PAD_ID
            shipped = torch.zeros(VOCAB, dtype=torch.float64)
            shipped[draft_probs.ids[place][real]] = draft_probs.probs[place][real].double()
            torch.testing.assert_close(shipped, expected, atol=2e-7, rtol=2e-6)
            assert shipped[drawn[block, slot]] > 0


def test_sampled_draws_have_the_distribution_that_is_shipped():
    """20,000 draws; a chi-squared of 7 degrees beyond 35 has probability 1e-5."""
    num_blocks = 20_000
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -9.0])
    where = BlockLayout(torch.zeros(num_blocks, dtype=torch.int64), 1, 9, None)
    sampler = Sampled(torch.ones(num_blocks), once_keys(num_blocks), num_kept=8)
    sampling = sampler.begin(where)
    drawn = sampling.draw(0, logits.expand(num_blocks, 1, -1))[:, 0]
    expected = logits[:8].softmax(0) * num_blocks
    observed = torch.bincount(drawn, minlength=9).float()
    assert observed[8] == 0
    assert ((observed[:8] - expected) ** 2 / expected).sum() < 35


def test_slots_and_branches_do_not_share_their_noise():
    """Equal distributions everywhere: were noise shared, whole blocks or columns would be equal."""
    logits = torch.zeros(40, 6, VOCAB)
    where = BlockLayout(torch.full((40,), 11), 6, VOCAB, None)
    drawn = Sampled(torch.ones(40), once_keys(40), num_kept=VOCAB).begin(where).draw(0, logits)
    assert len({tuple(block) for block in drawn.tolist()}) == 40
    assert all(len(set(slot)) > 10 for slot in drawn.T.tolist())
    again = Sampled(torch.ones(40), once_keys(40), num_kept=VOCAB).begin(where).draw(0, logits)
    assert torch.equal(drawn, again)
