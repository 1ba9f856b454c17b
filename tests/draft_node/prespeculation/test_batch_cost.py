import math

import pytest

from draft_node.prespeculation.batch_cost import BatchCost


def learned(seconds_of, sizes):
    cost = BatchCost()
    for size in sizes:
        cost.observe(size, seconds_of(size))
    return cost


def test_nothing_is_known_before_the_first_draft_batch():
    assert BatchCost().largest_within(0.001) == math.inf


@pytest.mark.parametrize(("fixed", "each"), [(0.005, 0.0008), (0.0, 0.002), (0.01, 0.0001)])
def test_draft_batches_of_different_sizes_teach_what_a_block_costs(fixed, each):
    cost = learned(lambda size: fixed + each * size, [8, 12, 4, 8, 16, 2] * 10)
    for size in (1, 6, 20):
        seconds = (fixed + each * size) / 0.9  # a tenth is kept back
        assert cost.largest_within(seconds) == pytest.approx(size, abs=0.5)


def test_draft_batches_of_one_size_fit_where_they_fitted_and_smaller_ones_in_less():
    cost = learned(lambda size: 0.01, [8] * 20)
    assert cost.largest_within(0.0112) == pytest.approx(8, abs=0.2)
    assert 0 < cost.largest_within(0.008) < 6
    assert cost.largest_within(0.003) <= 0


def test_what_becomes_slower_is_believed_after_a_while():
    cost = learned(lambda size: 0.01, [8] * 50)
    for _ in range(100):
        cost.observe(8, 0.03)
    assert cost.largest_within(0.012) <= 0


def test_a_slope_is_never_negative():
    cost = learned(lambda size: 0.01 - 0.0002 * size, [2, 16] * 20)
    assert cost.largest_within(0.02) > cost.largest_within(0.012)
