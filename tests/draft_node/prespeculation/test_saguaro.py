"""Definition 14 and Theorem 15 of the SSD paper: the vectors of `equations.md` section 5."""

import math

import pytest
import torch

from draft_node.prespeculation.saguaro import Saguaro, factors_of, prepared_per_slot
from specserve.noise import OnceKeys
from specserve.sampling.draft_law import PAD_ID
from specserve.sampling.drawing import BlockLayout, Sampled

Z_DRAFT = torch.tensor([2.0, 1.2, 0.7, 0.0, -0.5, -1.0])
Z_TARGET = torch.tensor([1.5, 1.4, 0.6, 0.3, -0.2, -1.2])


def draw(factor, temperature=1.0, seed=1, num_blocks=1):
    """Token and law of slots with the draft's logits at this temperature."""
    zeros = [0] * num_blocks
    keys = OnceKeys.build([seed] * num_blocks, zeros, zeros, list(range(num_blocks)), zeros)
    temperatures = torch.full((num_blocks,), temperature)
    factors = factors_of([True] * num_blocks, factor, torch.device("cpu"))
    rule = Saguaro(Sampled(temperatures, keys, 6), temperatures, factors, 2)
    layout = BlockLayout(torch.full((num_blocks,), 5), 1, 6, None)
    draws = rule.begin(layout)
    logits = (Z_DRAFT * temperature).expand(num_blocks, 1, 6)
    return draws.draw(0, logits), draws.law()


def dense(law):
    probs = torch.zeros(len(law.ids), 7)
    return probs.scatter(1, law.ids.clamp(max=6), law.probs)[:, :6]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("factor", "accept", "mass"),
    [
        (1.0, 0.845046, 0.582122),
        (0.75, 0.855673, 0.754817),
        (0.5, 0.861583, 1.0),
        (0.25, 0.736219, 1.0),
        (0.0, 0.334552, 1.0),
    ],
)
def test_acceptance_and_residual_mass_are_those_of_the_definition(
    factor, accept, mass, temperature
):
    _, law = draw(factor, temperature)
    assert bool(law.sound(6).all())
    draft, target = dense(law)[0], Z_TARGET.softmax(0)
    residual = (target - draft).clamp(min=0)
    assert float(torch.minimum(target, draft).sum()) == pytest.approx(accept, abs=1e-6)
    assert float(residual[:2].sum() / residual.sum()) == pytest.approx(mass, abs=1e-6)


def test_what_is_drawn_follows_the_law_that_is_shipped():
    tokens, law = draw(0.5, num_blocks=20_000)
    expected = dense(law)[0]
    counts = torch.bincount(tokens.flatten(), minlength=6)
    chi_square = float(((counts - 20_000 * expected) ** 2 / (20_000 * expected)).sum())
    assert chi_square < 25.7  # 5 degrees of freedom, one false alarm in 10,000


def test_a_factor_of_zero_leaves_what_is_prepared_to_recovery():
    tokens, law = draw(0.0, num_blocks=500)
    assert int(tokens.min()) == 2
    assert bool((law.ids[:, 4:] == PAD_ID).all())


def test_outcomes_per_slot_are_shared_out_evenly():
    assert prepared_per_slot(32, 7) == 4
    assert prepared_per_slot(1, 7) == 1
    assert prepared_per_slot(10, 3) == math.ceil(2.5)


@pytest.mark.parametrize("num_possible", [1, 2])
def test_of_a_row_that_is_cut_to_what_is_prepared_nothing_is_taken(num_possible):
    logits = torch.full((1, 1, 6), -torch.inf)
    logits[..., 1 : 1 + num_possible] = torch.tensor([2.0, 1.0][:num_possible])
    zeros = [0]
    keys = OnceKeys.build(zeros, zeros, zeros, zeros, zeros)
    rule = Saguaro(Sampled(torch.ones(1), keys, 6), torch.ones(1), torch.zeros(1), 2)
    drawing = rule.begin(BlockLayout(torch.zeros(1, dtype=torch.int64), 1, 6, None))
    assert 1 <= int(drawing.draw(0, logits.clone())) <= num_possible
    law = drawing.law()
    expected = logits[0, 0].softmax(0)
    found = torch.zeros(6).index_add(
        0, law.ids[0][law.probs[0] > 0], law.probs[0][law.probs[0] > 0]
    )
    torch.testing.assert_close(found, expected)
