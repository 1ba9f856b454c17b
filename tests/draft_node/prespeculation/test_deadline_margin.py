"""How much of the time there is may be used follows what became of blocks."""

import random

import pytest

from draft_node.prespeculation.batch_size import DeadlineMargin


def used_by(usable, num_rows=1, num_rounds=4000):
    """The share after so many rounds, and how many of the second half were too short for it.

    `usable` says how much of a round could have been used, the same for all of its rows.
    """
    deadline_margin, num_late = DeadlineMargin(), 0
    for number in range(num_rounds):
        was_late = usable() < deadline_margin.share
        num_late += was_late and number >= num_rounds // 2
        for _ in range(num_rows):
            deadline_margin.observe(was_late=was_late)
        deadline_margin.settle()
    return deadline_margin.share, num_late / (num_rounds // 2)


def test_all_of_the_time_is_used_while_nothing_is_late():
    assert used_by(lambda: 1.02, num_rounds=100) == (1.0, 0.0)


def test_something_is_drafted_though_everything_is_late():
    share, late = used_by(lambda: 0.1)
    assert (share, late) == (0.5, 1.0)


@pytest.mark.parametrize("num_rows", [1, 16])
def test_about_one_block_in_eleven_is_late_where_rounds_differ(num_rows):
    draw = random.Random(0)
    share, late = used_by(lambda: draw.uniform(0.7, 1.1), num_rows)
    assert 0.65 < share < 0.82
    assert 0.06 < late < 0.12


def test_rows_of_a_round_that_were_late_and_in_time_count_by_their_numbers():
    deadline_margin = DeadlineMargin()
    for number in range(11):
        deadline_margin.observe(was_late=number == 0)
    before = deadline_margin.share
    deadline_margin.settle()
    assert deadline_margin.share == pytest.approx(before)
    deadline_margin.settle()  # a report without any block
    assert deadline_margin.share == pytest.approx(before)
