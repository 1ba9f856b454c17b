"""What of an outcome is emitted: exactly what decoding the same tokens one by one would emit."""

import itertools

import pytest

from specserve.sampling.verification.commit import Commit, commit_of
from specserve.types import FinishReason


def step_by_step(tokens, *, end_token_ids, num_held_back, room):
    """Plain decoding: a token, then the question whether that was the last."""
    emitted = []
    for token_id in tokens:
        if token_id < 0:
            return emitted, None, True
        emitted.append(token_id)
        may_end = len(emitted) > num_held_back
        if may_end and token_id in end_token_ids:
            return emitted, FinishReason.STOP, False
        if len(emitted) == room:
            return emitted, FinishReason.LENGTH, False
    return emitted, None, False


def test_commits_are_those_of_plain_decoding():
    cases = 0
    for drafted in itertools.product((0, 1, 2), repeat=3):
        for num_accepted, next_token, room, held in itertools.product(
            range(4), (-1, 0, 2), range(1, 6), (-2, 0, 2)
        ):
            found = commit_of(
                drafted,
                num_accepted,
                next_token,
                end_token_ids={2},
                num_held_back=held,
                room=room,
            )
            tokens, reason, failed = step_by_step(
                [*drafted[:num_accepted], next_token],
                end_token_ids={2},
                num_held_back=held,
                room=room,
            )
            expected = Commit(tokens, min(num_accepted, len(tokens)), reason, failed)
            assert found == expected
            cases += 1
    assert cases == 27 * 4 * 3 * 5 * 3


def test_nothing_follows_an_end_token_inside_the_accepted_prefix():
    found = commit_of([5, 9, 7], 3, 8, end_token_ids=(9,), num_held_back=0, room=100)
    assert found == Commit([5, 9], 2, FinishReason.STOP, failed=False)


def test_bad_logits_behind_the_end_are_no_failure():
    assert not commit_of([9], 1, -1, end_token_ids=(9,), num_held_back=0, room=9).failed
    assert commit_of([8], 1, -1, end_token_ids=(9,), num_held_back=0, room=9).failed


def test_nonsense_is_refused():
    for num_accepted, room in ((2, 5), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="accepted"):
            commit_of([1], num_accepted, 3, end_token_ids=(), num_held_back=0, room=room)
