"""The closed forms of shared noise, against what they must sum to and against real noise."""

import random

import pytest
import torch

from specserve.noise import Purpose, exponential_noise
from tests.exactness.enumeration.shared_noise import joint_distribution


def random_probs(rng, size, zeros=0):
    weights = [rng.random() + 0.01 for _ in range(size)]
    for place in rng.sample(range(size), zeros):
        weights[place] = 0.0
    return [w / sum(weights) for w in weights]


DISTRIBUTIONS = [
    (random_probs(rng, size, zeros), random_probs(rng, size, zeros))
    for rng in [random.Random(0)]
    for size in (2, 3, 4)
    for zeros in (0, 1)
    for _ in range(20)
]


def test_the_joint_distribution_has_both_distributions_as_its_margins():
    for p, q in DISTRIBUTIONS:
        joint = joint_distribution(p, q)
        assert [sum(row) for row in joint] == pytest.approx(p, abs=1e-14)
        assert [sum(column) for column in zip(*joint, strict=True)] == pytest.approx(q, abs=1e-14)


def test_agreement_is_at_least_what_total_variation_allows():
    for p, q in DISTRIBUTIONS:
        agreement = sum(row[i] for i, row in enumerate(joint_distribution(p, q)))
        distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        assert (1 - distance) / (1 + distance) - 1e-14 <= agreement <= 1 - distance + 1e-14


def test_equal_distributions_always_agree_and_disjoint_ones_are_independent():
    p = [0.5, 0.3, 0.2, 0.0]
    assert [row[i] for i, row in enumerate(joint_distribution(p, p))] == pytest.approx(p)
    joint = joint_distribution([0.6, 0.4, 0, 0], [0, 0, 0.1, 0.9])
    assert joint[0][2:] == pytest.approx([0.06, 0.54])


def test_real_noise_has_the_joint_distribution():
    """Every cell within 5.5 standard deviations of 200,000 draws: false alarms below 1e-6."""
    p, q = [0.5, 0.3, 0.2, 0.0], [0.2, 0.1, 0.3, 0.4]
    rows = torch.arange(200_000)
    noise = exponential_noise(torch.full_like(rows, 9), rows * 0, rows, Purpose.OUTPUT, 4)
    winners = [(noise / torch.tensor(distribution)).argmin(dim=1) for distribution in (p, q)]
    counts = torch.bincount(winners[0] * 4 + winners[1], minlength=16).double()
    expected = torch.tensor(joint_distribution(p, q)).double().flatten()
    spread = (expected * (1 - expected) * len(rows)).sqrt()
    assert ((counts - expected * len(rows)).abs() <= 5.5 * spread).all()
