"""How much of the time there is may be used follows how much of it could have been."""

import random

from draft_node.punctuality import Punctuality


def used_by(usable, num_rounds=2000):
    """The share after so many rounds, and how many of the second half were too short for it."""
    punctuality, num_late = Punctuality(), 0
    for number in range(num_rounds):
        now = usable()
        num_late += now < punctuality.share and number >= num_rounds // 2
        punctuality.observe(now)
    return punctuality.share, num_late / (num_rounds // 2)


def test_all_of_the_time_is_used_where_rounds_are_as_long_as_foretold():
    assert used_by(lambda: 1.02, num_rounds=200) == (1.0, 0.0)


def test_something_is_drafted_though_there_is_hardly_any_time():
    share, _ = used_by(lambda: 0.1)
    assert share == 0.5


def test_about_one_block_in_eleven_is_late_where_rounds_differ():
    draw = random.Random(0)
    share, late = used_by(lambda: draw.uniform(0.7, 1.1))
    assert 0.7 < share < 0.8
    assert 0.06 < late < 0.12


def test_a_round_with_a_prompt_in_it_changes_little():
    punctuality = Punctuality()
    punctuality.observe(14.0)
    assert punctuality.share < 0.86
    assert used_by(lambda: 1.02, num_rounds=100)[0] == 1.0
