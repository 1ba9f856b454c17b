"""What is read off the rounds of a text."""

import pytest

from bench.acceptance import (
    accept_len,
    accepted_share,
    conditional_acceptance,
    verified_len,
    whole_rounds,
)
from bench.rounds import Answer, Round


def round_(verify_len: int, num_accepted: int, room: int = 50) -> Round:
    emitted = num_accepted + 1
    return Round(room=room, num_emitted=emitted, verify_len=verify_len, num_accepted=num_accepted)


def test_rounds_without_room_for_a_whole_block_do_not_count():
    rounds = [round_(3, 3, room=10), round_(3, 1, room=4), round_(2, 2, room=3), round_(0, 0, 1)]
    assert whole_rounds(Answer(rounds=rounds), 3) == rounds[:2]


def test_a_round_counts_by_its_beginning_not_by_its_outcome():
    rejected, accepted = round_(3, 0, room=4), round_(3, 3, room=4)
    assert whole_rounds(Answer(rounds=[rejected, accepted]), 3) == [rejected, accepted]


def test_accept_length_counts_the_bonus_token_and_rounds_without_drafts():
    assert accept_len([[round_(3, 3), round_(0, 0)], [round_(3, 0)]]).value == pytest.approx(2.0)


def test_conditional_acceptance_leaves_out_what_earlier_rejections_hide():
    prompts = [[round_(3, 0), round_(3, 1)], [round_(3, 3), round_(3, 2)]]
    shares = [conditional_acceptance(prompts, k).value for k in range(3)]
    assert shares == pytest.approx([3 / 4, 2 / 3, 1 / 2])


def test_a_position_that_was_not_verified_says_nothing():
    prompts = [[round_(1, 1), round_(2, 1)]]
    found = conditional_acceptance(prompts, 1)
    assert (found.over.sum(), found.under.sum()) == (0, 1)


def test_accepted_share_is_of_the_verified_tokens():
    prompts = [[round_(4, 1), round_(0, 0)], [round_(2, 2)]]
    assert accepted_share(prompts).value == pytest.approx(3 / 6)
    assert verified_len(prompts).value == pytest.approx(6 / 3)
