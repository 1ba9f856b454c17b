"""What forwards take, by rows, tokens and keys: stairs stay stairs, and rounds correct them."""

import random

import numpy as np
import pytest

from target_node.planning.step_table import Cell, Slopes, StepSize, StepTable, ends_of_steps


def table(seconds: dict[int, float], slopes=Slopes(), edges=()) -> StepTable:  # noqa: B008 - a tuple
    steps = StepTable(edges)
    steps.learn({size: Cell(s, 8) for size, s in seconds.items()}, slopes)
    return steps


def seconds_of(steps: StepTable, num_tokens: int, *, num_rows=1, num_keys=0) -> float:
    return float(steps.freeze().at(num_rows, num_keys).seconds(np.array([num_tokens]))[0])


def test_stairs_are_not_smoothed():
    steps = table({8: 1.0, 9: 1.4, 16: 1.4, 17: 2.1})
    assert [seconds_of(steps, n) for n in (8, 9, 12, 16, 17)] == [1.0, 1.4, 1.4, 1.4, 2.1]


def test_what_seems_to_take_longer_than_more_tokens_was_held_up():
    steps = table({1: 1.0, 2: 3.0, 4: 1.2, 8: 2.0})
    assert [seconds_of(steps, n) for n in (1, 2, 4)] == [1.0, 1.2, 1.2]


def test_between_known_sizes_and_beyond_the_last_lie_lines():
    steps = table({4: 1.0, 8: 2.0, 16: 6.0})
    assert seconds_of(steps, 6) == pytest.approx(1.5)
    assert seconds_of(steps, 1) == 1.0
    assert seconds_of(steps, 20) == pytest.approx(8.0)
    assert seconds_of(table({4: 2.0, 8: 1.0}), 99) == 1.0  # time does not run backwards


def test_what_is_padded_takes_what_it_is_padded_to():
    steps = table({8: 1.0, 16: 2.0}, edges=(8, 16, 32))
    assert [seconds_of(steps, n) for n in (1, 8, 9, 16)] == [1.0, 1.0, 2.0, 2.0]
    assert seconds_of(steps, 17) == pytest.approx(seconds_of(steps, 32)) == pytest.approx(4.0)
    found = ends_of_steps(np.array([8, 16]), np.array([1, 8, 9, 17]))
    assert found.tolist() == [8, 8, 16, 17]


def test_rows_and_keys_add_their_share():
    steps = table({8: 1.0}, Slopes(row_s=0.1, key_s=0.01))
    assert seconds_of(steps, 8, num_rows=3, num_keys=50) == pytest.approx(1.8)


def test_without_anything_known_all_forwards_take_the_same():
    steps = StepTable()
    assert seconds_of(steps, 1) == seconds_of(steps, 99) == 1.0
    assert steps.freeze().line(1) is None
    steps.observe(StepSize(1, 4, 4), 0.02)
    assert seconds_of(steps, 4) == pytest.approx(0.02)


def test_what_is_frozen_stays():
    steps = table({4: 1.0, 8: 2.0})
    frozen = steps.freeze()
    for _ in range(50):
        steps.observe(StepSize(1, 6, 6), 3.0)
    assert frozen.at(1, 0).seconds(np.array([6]))[0] == pytest.approx(1.5)
    assert seconds_of(steps, 6) > 2
    assert steps.freeze() is steps.freeze()


def rounds(steps: StepTable, truth, count: int, *, rng: random.Random, noise=0.03) -> None:
    for _ in range(count):
        num_rows = rng.choice([1, 2, 4])
        num_tokens = num_rows * rng.randint(1, 6)
        size = StepSize(num_rows, num_tokens, num_rows * rng.randrange(20, 400))
        steps.observe(size, truth(size) * rng.uniform(1, 1 + noise))


def stairs(size: StepSize) -> float:
    return 0.02 + 0.006 * -(-size.num_tokens // 8) + 2e-6 * size.num_keys


def test_rounds_teach_what_was_never_profiled():
    steps, rng = table({}, Slopes(key_s=2e-6)), random.Random(1)
    rounds(steps, stairs, 600, rng=rng)
    assert steps.median_error < 0.04
    for size in (StepSize(1, 6, 200), StepSize(2, 10, 200), StepSize(4, 20, 1200)):
        found = seconds_of(steps, size.num_tokens, num_rows=size.num_rows, num_keys=size.num_keys)
        assert found == pytest.approx(stairs(size), rel=0.08)
    assert seconds_of(steps, 10) - seconds_of(steps, 8) > 0.004


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_wrong_profile_is_outweighed_at_sizes_that_ran_and_at_others(factor):
    """Another process had the machine then, or has it now."""
    steps = table({n: factor * stairs(StepSize(1, n, 0)) for n in (1, 4, 8, 12, 16, 24, 64, 65)})
    rounds(steps, stairs, 400, rng=random.Random(2))
    assert steps.median_error < 0.1
    assert seconds_of(steps, 64) == pytest.approx(stairs(StepSize(1, 64, 0)), rel=0.5)


def test_one_stall_is_hardly_noticed():
    steps = table({4: 0.02, 8: 0.03})
    steps.observe(StepSize(1, 4, 4), 5.0)
    assert seconds_of(steps, 4) < 0.024


def test_errors_are_those_of_predictions_made_before():
    steps = table({4: 1.0})
    assert steps.median_error is None
    steps.observe(StepSize(1, 4, 0), 2.0)
    assert steps.median_error == pytest.approx(0.5)
