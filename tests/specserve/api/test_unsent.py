"""Drafts that the client was never sent are taken off the target's counts, and nothing else is."""

from specserve.api.events import SpecRecord
from specserve.api.unsent import UnsentDrafts
from specserve.types import RequestStats, SampleDelta, TokenOrigin

COUNTED = RequestStats(
    num_drafts=3,
    num_drafted_tokens=11,
    num_accepted_tokens=7,
    num_accepted_per_position=[3, 2, 2, 0],
)


def delta(num_accepted: int, verify_len: int) -> SampleDelta:
    origins = [TokenOrigin.DRAFTED] * num_accepted + [TokenOrigin.BONUS]
    return SampleDelta("r", 0, list(range(num_accepted + 1)), origins, verify_len=verify_len)


def test_what_was_sent_whole_is_counted_whole():
    unsent = UnsentDrafts()
    unsent.drop(delta(3, 4), 4)
    record = unsent.record(COUNTED)
    assert record == SpecRecord(
        num_drafts=3,
        num_draft_tokens=11,
        num_accepted_tokens=7,
        num_accepted_tokens_per_pos=[3, 2, 2, 0],
    )


def test_a_round_cut_short_stays_a_round_with_fewer_accepted():
    unsent = UnsentDrafts()
    unsent.drop(delta(3, 4), 2)
    record = unsent.record(COUNTED)
    assert (record.num_drafts, record.num_draft_tokens) == (3, 11)
    assert (record.num_accepted_tokens, record.num_accepted_tokens_per_pos) == (6, [3, 2, 1, 0])


def test_a_round_that_came_too_late_is_no_round():
    unsent = UnsentDrafts()
    unsent.drop(delta(3, 4), 1)
    unsent.drop(delta(1, 3), 0)
    record = unsent.record(COUNTED)
    assert (record.num_drafts, record.num_draft_tokens) == (2, 8)
    assert (record.num_accepted_tokens, record.num_accepted_tokens_per_pos) == (4, [2, 1, 1, 0])


def test_a_plain_round_that_came_too_late_was_never_counted():
    unsent = UnsentDrafts()
    unsent.drop(SampleDelta("r", 0, [1], [TokenOrigin.PLAIN]), 0)
    assert unsent.record(COUNTED).num_drafts == 3
