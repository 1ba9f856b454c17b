"""The vectors of `equations.md` section 4, and greedy allocation against brute force."""

import inspect
import itertools

import numpy as np
import pytest

from draft_node.prespeculation.fan_out import (
    NO_RANK,
    AcceptancePrior,
    HitCurve,
    HitCurves,
    allocate,
)
from draft_node.prespeculation.outcomes import OutcomeKind


def weights_of(accept_rate, gamma):
    powers = accept_rate ** np.arange(gamma + 1)
    powers[:-1] *= 1 - accept_rate
    return powers


def rates_of(loss, power, num_slots, num_ranks):
    """Gains of h(F) = 1 - c F^-r, h(0) = 0, rank by rank."""
    hits = np.concatenate([[0.0], 1 - loss * np.arange(1.0, num_ranks + 1) ** -power])
    return np.tile(np.diff(hits), (num_slots, 1))


def objective(weights, rates, counts):
    return sum(w * r[:n].sum() for w, r, n in zip(weights, rates, counts, strict=True))


@pytest.mark.parametrize(
    ("budget", "gamma", "accept_rate", "loss", "power", "expected", "value"),
    [
        (16, 3, 0.8, 0.4, 1, [4, 3, 3, 6], 0.907467),
        (12, 3, 0.6, 0.5, 0.7, [4, 3, 2, 3], 0.774223),
        (10, 4, 0.7, 0.3, 0.5, [3, 2, 2, 1, 2], 0.790504),
    ],
)
def test_allocation_finds_the_optima_of_concave_curves(
    budget, gamma, accept_rate, loss, power, expected, value
):
    weights, rates = weights_of(accept_rate, gamma), rates_of(loss, power, gamma + 1, budget)
    counts = allocate(weights, rates, budget)
    assert counts.tolist() == expected
    assert objective(weights, rates, counts) == pytest.approx(value, abs=1e-6)


def test_greedy_allocation_equals_brute_force_on_concave_curves():
    source = np.random.default_rng(3)
    for _ in range(40):
        num_slots, num_ranks, budget = 3, 5, int(source.integers(1, 9))
        weights = source.random(num_slots)
        rates = np.sort(source.random((num_slots, num_ranks)), axis=1)[:, ::-1]
        counts = allocate(weights, rates, budget)
        every = itertools.product(range(num_ranks + 1), repeat=num_slots)
        best = max(objective(weights, rates, n) for n in every if sum(n) <= budget)
        assert objective(weights, rates, counts) == pytest.approx(best)
        assert counts.sum() <= budget


def test_nothing_is_allotted_beyond_the_candidates_there_are():
    rates = np.zeros((3, 8))
    rates[0, :2], rates[2, :1] = 0.3, 0.9
    counts = allocate(np.array([0.2, 0.5, 0.3]), rates, 20)
    assert counts.tolist() == [2, 0, 1]


def test_a_budget_is_used_up_but_not_exceeded():
    weights = np.array([0.4, 0.0, 0.35, 0.25])
    counts = allocate(weights, rates_of(0.5, 1, 4, 32), 17)
    assert counts.sum() == 17


def test_allocation_can_see_neither_tokens_nor_noise():
    assert list(inspect.signature(allocate).parameters) == [
        "weights",
        "hit_rates",
        "budget",
    ]


def test_curves_follow_what_is_observed_and_never_rise():
    curve = HitCurve(8, first=0.4)
    prior = curve.rates()
    assert prior == pytest.approx(0.4 * 0.6 ** np.arange(8))
    source = np.random.default_rng(0)
    for rank in source.choice([0, 2, 1, NO_RANK, 50], p=[0.1, 0.5, 0.2, 0.1, 0.1], size=4000):
        curve.observe(int(rank))
    rates = curve.rates()
    assert (np.diff(rates) <= 0).all()
    assert rates[0] == pytest.approx(0.1, abs=0.06)
    assert rates[5] < 0.03 < prior[0]


def test_old_rounds_fade():
    curve = HitCurve(4, memory=50)
    for rank in [0] * 500 + [3] * 500:
        curve.observe(rank)
    assert curve.rates()[0] < 0.25


def test_kinds_and_bonus_tokens_are_measured_apart():
    curves = HitCurves(4)
    three = np.array([4, 4, 2])
    before = curves.rates(OutcomeKind.COUPLED, 2, three)
    assert (before[2, 2:] == 0).all()
    for _ in range(200):
        curves.observe(OutcomeKind.COUPLED, 0, is_bonus=True)
        curves.observe(OutcomeKind.REJECTION, NO_RANK, is_bonus=False)
    after = curves.rates(OutcomeKind.COUPLED, 2, three)
    assert (after[:2] == before[:2]).all()
    assert after[2, 0] > 0.8
    assert curves.rates(OutcomeKind.REJECTION, 2, three)[0, 0] < 0.1
    assert curves.rates(OutcomeKind.GREEDY, 2, three)[0, 0] == before[0, 0]


def test_the_prior_learns_slots_up_to_the_first_rejection():
    prior = AcceptancePrior(4, prior=0.5, weight=2)
    for _ in range(100):
        prior.observe(verify_len=3, num_accepted=1)
    confidences = prior.confidences
    assert confidences[0] > 0.95
    assert confidences[1] < 0.05
    assert max(confidences[2:]) <= confidences[1]


def test_slots_that_were_never_looked_at_are_taken_for_those_before_them():
    prior = AcceptancePrior(6, prior=0.5)
    assert list(prior.confidences) == [0.5] * 6
    for _ in range(200):
        prior.observe(verify_len=3, num_accepted=3)
    assert min(prior.confidences) > 0.9
    for _ in range(20):
        prior.observe(verify_len=4, num_accepted=3)
    assert prior.confidences[2] > 0.9 > 0.6 > prior.confidences[3]


def test_acceptance_of_long_ago_fades():
    prior = AcceptancePrior(2)
    for _ in range(5000):
        prior.observe(verify_len=2, num_accepted=2)
    for _ in range(1500):
        prior.observe(verify_len=2, num_accepted=0)
    assert prior.confidences[0] < 0.1
