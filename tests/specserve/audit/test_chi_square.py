"""The chi-square test against torch's gamma function, and against draws."""

import pytest
import torch

from specserve.audit.chi_square import critical_value, goodness_of_fit, power, survival


@pytest.mark.parametrize("freedom", [1, 2, 7, 26, 63, 255, 1000])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 0.99, 1.0, 1.3, 2.0, 5.0])
def test_survival_is_the_upper_gamma_function(freedom, ratio):
    statistic = freedom * ratio
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    expected = torch.special.gammaincc(*halves).item()
    assert survival(statistic, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_critical_values_are_where_survival_is_the_false_alarm_rate():
    for freedom in (1, 26, 80):
        for rate in (1e-3, 1e-6, 1e-8):
            assert survival(critical_value(freedom, rate), freedom) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("distribution", "num_draws"),
    [
        ([0.4, 0.3, 0.2, 0.05, 0.05], 300),
        ([1 / 64] * 64, 150),  # rare cells, all alike: they are merged whatever fell into them
    ],
)
def test_counts_of_the_distribution_itself_are_uniform_in_p(distribution, num_draws):
    generator = torch.Generator().manual_seed(3)
    distribution = torch.tensor(distribution)
    values = []
    for _ in range(400):
        draws = torch.multinomial(distribution, num_draws, replacement=True, generator=generator)
        counts = torch.bincount(draws, minlength=len(distribution)).tolist()
        values.append(goodness_of_fit(counts, distribution.tolist()).p_value)
    found = torch.tensor(values).sort().values
    assert (found - torch.arange(1, 401) / 400).abs().max() < 0.11  # 1e-4 by Kolmogorov-Smirnov


@pytest.mark.parametrize(("num_samples", "distance"), [(2000, 0.06), (8000, 0.03)])
def test_power_is_what_draws_show_in_the_hardest_direction(num_samples, distance):
    distribution = torch.full((16,), 1 / 16)
    wrong = distribution * torch.cat(
        (torch.full((8,), 1 + 2 * distance), torch.full((8,), 1 - 2 * distance))
    )
    generator = torch.Generator().manual_seed(1)
    found = 0
    for _ in range(400):
        draws = torch.multinomial(wrong, num_samples, replacement=True, generator=generator)
        counts = torch.bincount(draws, minlength=16).tolist()
        found += goodness_of_fit(counts, distribution.tolist()).p_value < 1e-3
    assert found / 400 == pytest.approx(power(num_samples, 15, distance, 1e-3), abs=0.08)


def test_rare_cells_are_merged_and_impossible_ones_are_fatal():
    fit = goodness_of_fit([90, 6, 3, 1], [0.9, 0.06, 0.03, 0.01])
    assert (fit.num_cells, fit.statistic) == (2, pytest.approx(0))  # 6, 3 and 1 together
    assert goodness_of_fit([50, 50, 0], [0.5, 0.5, 0.0]).p_value == 1
    assert goodness_of_fit([50, 49, 1], [0.5, 0.5, 0.0]).p_value == 0
