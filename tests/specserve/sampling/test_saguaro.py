"""Definition 14 and Theorem 15 of the SSD paper: acceptance and residual mass of made-up logits."""

import pytest
import torch

from specserve.noise import OnceKeys
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import BlockLayout, SaguaroFactors, Sampled

Z_DRAFT = torch.tensor([2.0, 1.2, 0.7, 0.0, -0.5, -1.0])
Z_TARGET = torch.tensor([1.5, 1.4, 0.6, 0.3, -0.2, -1.2])
SIDES = len(Z_DRAFT)


def draw(
    logits: torch.Tensor, factors: list[float], temperature: float = 1.0, num_prepared: int = 2
) -> tuple[torch.Tensor, DraftProbs]:
    """A token for each of B blocks of one slot with these logits [B, 6], and its distribution."""
    num_blocks, zeros = len(factors), [0] * len(factors)
    keys = OnceKeys.build([1] * num_blocks, zeros, zeros, list(range(num_blocks)), zeros)
    saguaro = SaguaroFactors(torch.tensor(factors), num_prepared)
    sampler = Sampled(torch.full((num_blocks,), temperature), keys, SIDES, saguaro)
    draws = sampler.begin(BlockLayout(torch.full((num_blocks,), 5), 1, SIDES, None))
    token_ids = draws.draw(0, logits.expand(num_blocks, 1, SIDES))
    draft_probs = draws.draft_probs()
    assert draft_probs is not None
    assert bool(draft_probs.sound(SIDES).all())
    return token_ids, draft_probs


def dense(draft_probs: DraftProbs) -> torch.Tensor:
    return -draft_probs.subtracted_from(torch.zeros(len(draft_probs.ids), SIDES))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("factor", "accepted", "mass"),
    [
        (1.0, 0.845046, 0.582122),
        (0.75, 0.855673, 0.754817),
        (0.5, 0.861583, 1.0),
        (0.25, 0.736219, 1.0),
        (0.0, 0.334552, 1.0),
    ],
)
def test_acceptance_and_residual_mass_are_those_of_the_definition(
    factor: float, accepted: float, mass: float, temperature: float
):
    _, draft_probs = draw(Z_DRAFT * temperature, [factor], temperature)
    draft, target = dense(draft_probs)[0], Z_TARGET.softmax(0)
    residual = (target - draft).clamp(min=0)
    assert float(torch.minimum(target, draft).sum()) == pytest.approx(accepted, abs=1e-6)
    assert float(residual[:2].sum() / residual.sum()) == pytest.approx(mass, abs=1e-6)


def test_what_is_drawn_follows_the_distribution_that_is_shipped():
    token_ids, draft_probs = draw(Z_DRAFT, [0.5] * 20_000)
    expected = 20_000 * dense(draft_probs)[0]
    counts = torch.bincount(token_ids.flatten(), minlength=SIDES)
    # 5 degrees of freedom, one false alarm in 10,000.
    assert float(((counts - expected) ** 2 / expected).sum()) < 25.7


def test_blocks_have_factors_of_their_own():
    _, draft_probs = draw(Z_DRAFT, [1.0, 0.0])
    whole, cut = dense(draft_probs)
    torch.testing.assert_close(whole, Z_DRAFT.softmax(0))
    assert cut[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("num_possible", [1, 2])
def test_where_only_prepared_tokens_are_possible_nothing_is_cut(num_possible: int):
    logits = torch.full((SIDES,), -torch.inf)
    logits[1 : 1 + num_possible] = torch.tensor([2.0, 1.0][:num_possible])
    token_ids, draft_probs = draw(logits, [0.0])
    assert 1 <= int(token_ids) <= num_possible
    torch.testing.assert_close(dense(draft_probs)[0], logits.softmax(0))


def test_with_every_token_prepared_the_least_likely_one_is_left():
    _, draft_probs = draw(Z_DRAFT, [0.0], num_prepared=99)
    assert dense(draft_probs)[0].tolist() == [0.0] * (SIDES - 1) + [1.0]


def test_a_greedy_row_stays_greedy():
    token_ids, _ = draw(Z_DRAFT, [0.25], temperature=0.0)
    assert int(token_ids) == 0
