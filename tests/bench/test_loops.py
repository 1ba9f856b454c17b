"""What counts as a loop."""

import pytest

from bench.loops import count_loops, loops

FRESH = list(range(100, 200))


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([7] * 32, True),
        ([7] * 31, False),
        ([1, 2, 3] * 11, True),
        (list(range(16)) * 3, True),
        (list(range(16)) * 2, False),  # 32 tokens, but the period came only twice
        (list(range(17)) * 4, False),  # too long a period
        ([*[7] * 40, 8], False),  # it got out
        ([*range(12)] * 2 + [*range(12)][:11], False),  # the third time is not whole
        ([*range(12)] * 3, True),
    ],
)
def test_a_loop_is_a_short_period_at_the_end_often_enough(tail, expected):
    assert loops([*FRESH, *tail]) is expected


def test_short_and_empty_answers_do_not_loop():
    assert not loops([])
    assert not loops([7] * 20)


def test_looping_answers_are_counted_among_all():
    count = count_loops([[7] * 64, FRESH, [1, 2] * 40])
    assert (count.num_looping, count.num_answers) == (2, 3)
    assert str(count) == "2 of 3 greedy answers loop"
