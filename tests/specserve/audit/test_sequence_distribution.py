"""Trees of sequence distributions, and the tests against them, on draws whose distribution is
known.
"""

import random

import pytest

from specserve.audit.sequence_distribution import ELSEWHERE, SequenceDistribution

# Two tokens deep; after 1 the distribution names everything, after 0 it does not.
DISTRIBUTION = SequenceDistribution(
    {(): {0: 0.5, 1: 0.3}, (0,): {5: 0.6}, (1,): {7: 0.25, 8: 0.75}}
)


def draw(rng: random.Random) -> list[int]:
    first = rng.choices([0, 1, 2], [0.5, 0.3, 0.2])[0]
    if first == 1:
        return [1, rng.choices([7, 8], [0.25, 0.75])[0], 9]
    return [first, rng.choices([5, 6], [0.6, 0.4])[0], 9]


def test_cells_are_paths_and_where_answers_leave_the_tree():
    assert DISTRIBUTION.cells() == {
        (ELSEWHERE,): pytest.approx(0.2),
        (0, 5): 0.3,
        (0, ELSEWHERE): pytest.approx(0.2),
        (1, 7): 0.075,
        (1, 8): pytest.approx(0.225),
        (1, ELSEWHERE): 0.0,
    }
    assert DISTRIBUTION.cell([0, 5, 1, 2]) == (0, 5)
    assert DISTRIBUTION.cell([0, 6]) == (0, ELSEWHERE)
    assert DISTRIBUTION.cell([3]) == (ELSEWHERE,)
    with pytest.raises(ValueError, match="1 tokens do not reach"):
        DISTRIBUTION.cell([1])


def test_answers_of_the_distribution_fit_and_others_do_not():
    rng = random.Random(1)
    answers = [draw(rng) for _ in range(4000)]
    assert DISTRIBUTION.fit(answers).p_value > 1e-3
    assert DISTRIBUTION.fit(answers).num_cells == 5
    late = [[*answer[:1], 5] if answer[0] == 0 else answer for answer in answers]
    assert DISTRIBUTION.fit(late).p_value < 1e-9
    assert DISTRIBUTION.fit([*answers, [1, 9]]).p_value == 0


def test_neighbours_that_copy_each_other_have_the_right_distribution_but_not_jointly():
    rng = random.Random(2)
    answers = [draw(rng) for _ in range(4000)]
    assert DISTRIBUTION.pair_fit(answers).p_value > 1e-3
    copied = [answer for answer in answers[:2000] for _ in range(2)]
    assert DISTRIBUTION.fit(copied).p_value > 1e-6
    assert DISTRIBUTION.pair_fit(copied).p_value < 1e-9
