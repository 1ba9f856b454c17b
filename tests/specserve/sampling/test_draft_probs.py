"""The draft's distribution: made once, drawn from as it is, and refused when it is none."""

import itertools

import pytest
import torch

from specserve.audit.chi_square import goodness_of_fit
from specserve.noise import OnceKeys, Purpose, _uniform
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.draft_sampler import BlockLayout, Sampled
from specserve.sampling.verification.ratio import accepts


def probs_of(*rows):
    """From {token id: weight} dictionaries."""
    width = max(len(row) for row in rows)
    ids = [[*row, *range(1000, 1000 + width - len(row))] for row in rows]
    weights = [[*row.values(), *[0.0] * (width - len(row))] for row in rows]
    return DraftProbs.of_entries(torch.tensor(ids), torch.tensor(weights))


def test_entries_are_put_in_order_and_renormalised_in_float32():
    draft_probs = probs_of({1: 0.4, 4: 0.3, 3: 0.2, 0: 0.0}, {2: 5.0})
    assert draft_probs.ids.tolist() == [[1, 3, 4, PAD_ID], [2, PAD_ID, PAD_ID, PAD_ID]]
    assert draft_probs.probs.dtype == torch.float32
    assert draft_probs.probs[0].tolist() == pytest.approx([4 / 9, 2 / 9, 3 / 9, 0])
    assert draft_probs.probs[1].tolist() == [1, 0, 0, 0]
    assert draft_probs.sound(5).all()


def test_a_weight_that_vanishes_when_it_is_divided_is_no_entry():
    draft_probs = probs_of({3: 1.0, 1: 2.0**-149, 2: 1.0, 4: 1.0})
    assert draft_probs.ids.tolist() == [[2, 3, 4, PAD_ID]]
    assert draft_probs.sound(5).all()


def drawn_from(logits, keys, num_kept):
    """Tokens [N] and their distributions, one a row of `logits` [N, V], as by the ratio test."""
    method = Sampled(torch.ones(len(logits)), keys, num_kept)
    sampling = method.begin(BlockLayout(keys.positions, 1, logits.shape[1], None))
    drawn = sampling.draw(0, logits.unsqueeze(1))
    return drawn.squeeze(1), sampling.draft_probs()


def test_the_distribution_of_a_large_vocabulary_is_sound_and_small():
    logits = 8 * torch.rand(16, 151_936, generator=torch.Generator().manual_seed(0)).log()
    _, draft_probs = drawn_from(logits, once_keys(range(16)), 64)
    assert draft_probs.ids.shape == (16, 64)
    assert draft_probs.sound(151_936).all()
    assert torch.allclose(draft_probs.probs.double().sum(dim=1), torch.ones(16).double(), atol=1e-6)


def test_at_and_subtraction_read_the_same_distribution():
    draft_probs = probs_of({5: 1.0, 2: 3.0}, {0: 1.0})
    assert draft_probs.at(torch.tensor([2, 7])).tolist() == [0.75, 0.0]
    assert draft_probs.at(torch.tensor([PAD_ID, PAD_ID])).tolist() == [0, 0]
    probs = torch.full((2, 6), 0.5)
    found = draft_probs.subtracted_from(probs)
    assert found.tolist() == [[0.5, 0.5, -0.25, 0.5, 0.5, 0.25], [-0.5, *[0.5] * 5]]
    assert (probs == 0.5).all()


def test_certain_distributions_are_one_hot():
    draft_probs = DraftProbs.certain(torch.tensor([7, 0]))
    assert draft_probs.sound(8).all()
    assert draft_probs.ids.tolist() == [[7], [0]]
    assert draft_probs.probs.tolist() == [[1], [1]]


def test_distributions_of_several_drafters_join_padded():
    wide, narrow = probs_of({5: 1.0, 2: 3.0}), DraftProbs.certain(torch.tensor([7, 4]))
    joined = DraftProbs.joined([narrow, wide])
    assert joined.ids.tolist() == [[7, PAD_ID], [4, PAD_ID], [2, 5]]
    assert joined.probs.tolist() == [[1, 0], [1, 0], [0.75, 0.25]]
    assert joined.sound(8).all()


def once_keys(branches):
    zeros = [0] * len(branches)
    return OnceKeys.build(zeros, zeros, zeros, branches, zeros)


def test_drawn_tokens_have_the_distribution():
    """Chi-square over 50,000 draws at a false-alarm rate of 1e-6; what is not kept never comes."""
    logits = torch.full((10,), -torch.inf)
    kept, weights = [1, 2, 6, 9], torch.tensor([0.3, 0.05, 0.15, 0.5])
    logits[kept] = weights.log()
    logits[3] = -5.0  # the fifth
    drawn, draft_probs = drawn_from(logits.repeat(50_000, 1), once_keys(range(50_000)), 4)
    assert draft_probs.ids.unique(dim=0).tolist() == [kept]
    counts = torch.bincount(drawn, minlength=10)
    assert goodness_of_fit(counts[kept].tolist(), weights.tolist()).p_value > 1e-6
    assert counts.sum() == counts[kept].sum()


def test_every_part_of_a_once_key_changes_the_draw():
    base = {"nonces": 1, "sample_indices": 1, "rounds": 1, "branches": 1, "positions": 1}
    variants = [base, *({**base, name: 2} for name in base)]
    keys = OnceKeys.build(**{name: [v[name] for v in variants] for name in base})
    drawn, _ = drawn_from(torch.zeros(len(variants), 4096), keys, 4096)
    assert drawn.unique().numel() == len(variants)


def test_no_branch_of_one_purpose_meets_the_noise_of_another():
    branches = range(64)
    ones = [1] * 64
    keys = OnceKeys.build(ones, ones, ones, branches, ones)
    noise = torch.cat([keys.exponential(purpose, 8) for purpose in Purpose])
    assert noise.unique().numel() == len(Purpose) * 64 * 8


def test_uniforms_stay_between_zero_and_one():
    """At 1 a certain acceptance would fail; the top words round up to it."""
    ends = _uniform(torch.tensor([0, 2**32 - 1, 2**32 - 128]).float())
    assert ends[0] == 2.0**-33
    assert (ends < 1).all()
    assert accepts(ends, torch.ones(3)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("sample_indices", 1 << 12), ("rounds", 1 << 20), ("branches", 1 << 24), ("rounds", -1)],
)
def test_a_key_that_would_repeat_is_refused(name, value):
    names = ("nonces", "sample_indices", "rounds", "branches", "positions")
    fields = {key: [0] for key in names}
    with pytest.raises(ValueError, match="used twice"):
        OnceKeys.build(**{**fields, name: [value]})


def broken(ids, probs):
    return DraftProbs(torch.tensor([ids]), torch.tensor([probs]))


@pytest.mark.parametrize(
    "draft_probs",
    [
        broken([1, 2], [0.5, float("nan")]),
        broken([1, 2], [0.5, float("inf")]),
        broken([1, 2], [1.5, -0.5]),
        broken([1, 2], [0.5, 0.4]),
        broken([1, 2], [0.9, 0.9]),
        broken([2, 2], [0.5, 0.5]),
        broken([2, 1], [0.5, 0.5]),
        broken([1, 8], [0.5, 0.5]),
        broken([-1, 1], [0.5, 0.5]),
        broken([PAD_ID, 1], [0.0, 1.0]),
        broken([1, PAD_ID], [0.5, 0.5]),
        broken([1, 2], [1.0, 0.0]),
        broken([PAD_ID, PAD_ID], [0.0, 0.0]),
    ],
)
def test_what_is_no_distribution_is_noticed(draft_probs):
    assert draft_probs.sound(8).tolist() == [False]
    emptied = draft_probs.only(draft_probs.sound(8))
    assert emptied.ids.tolist() == [[PAD_ID, PAD_ID]]
    assert emptied.probs.tolist() == [[0.0, 0.0]]


def test_no_two_keys_of_a_request_are_one():
    """Of neighbouring samples, rounds and branches, and of the first and last ones."""
    samples, rounds, branches = (0, 1, 2, 4095), (0, 1, 2, 4096), (0, 1, 2, 255, 256)
    columns = list(zip(*itertools.product(samples, rounds, branches), strict=True))
    same = [7] * len(columns[0])
    keys = OnceKeys.build(same, *columns, same)
    noise = torch.cat([keys.exponential(purpose, 4) for purpose in Purpose])
    assert noise.unique().numel() == noise.numel()
