"""How much of the time there is may be used follows what became of blocks."""

import random

from draft_node.punctuality import Punctuality


def used_by(is_late, num_rounds=4000):
    """The share after so many rounds, and how many of the second half were late."""
    punctuality, num_late = Punctuality(), 0
    for number in range(num_rounds):
        was_late = is_late(punctuality.share)
        num_late += was_late and number >= num_rounds // 2
        punctuality.observe(was_late=was_late)
    return punctuality.share, num_late / (num_rounds // 2)


def test_all_of_the_time_is_used_while_nothing_is_late():
    assert used_by(lambda share: False) == (1.0, 0.0)


def test_something_is_drafted_though_everything_is_late():
    share, _ = used_by(lambda share: True)
    assert 0.5 < share < 0.7


def test_about_one_block_in_twenty_is_late_where_rounds_differ():
    draw = random.Random(0)
    # Rounds last 0.7 to 1.1 times what was foretold.
    share, late = used_by(lambda share: share > draw.uniform(0.7, 1.1))
    assert 0.7 <= share < 0.76
    assert 0.03 < late < 0.07
