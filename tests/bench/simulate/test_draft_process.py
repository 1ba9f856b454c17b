"""A simulated draft process: what it drafts of what it heard, in which order, and by when."""

import pytest

from bench.simulate.draft_process import DraftProcess, RowSeen, Seen
from bench.simulate.setting import Drafters
from bench.simulate.step_models import chains
from draft_node.prespeculation.outcomes import OutcomeKind

BLOCK_S = 0.001  # of up to sixteen
ROUND_S = 0.01


def process(*, block_s=BLOCK_S, token_s=0.0, fan_out=8, gamma=3, sixteen=1.0) -> DraftProcess:
    """`sixteen`: times as long that as many blocks take."""
    times = chains({1: (block_s, token_s), 16: (sixteen * block_s, sixteen * token_s)})
    return DraftProcess(Drafters(gamma, process=times, fan_out=fan_out), OutcomeKind.GREEDY)


def seen(row="a", number=1, *, verify_len=3, outcome=None, has_block=True, **more) -> RowSeen:
    return RowSeen(row, number, outcome, verify_len, (), has_block, **more)


def report(drafts: DraftProcess, *rows: RowSeen, at_s=0.0, round_s=ROUND_S) -> None:
    drafts.report(Seen(at_s, round_s, rows))


def test_likely_outcomes_are_there_after_as_long_as_a_batch_takes():
    drafts = process()
    report(drafts, seen())
    assert drafts.block_for("a", 1, (3, 0), 0.9 * BLOCK_S) is None
    found = drafts.block_for("a", 1, (3, 0), 1.1 * BLOCK_S)
    assert found.ready_s == pytest.approx(BLOCK_S)
    assert found.num_tokens == 4  # the last of which stays behind


def test_a_budget_goes_to_the_likeliest_outcomes():
    """Of tokens that mostly stand: all of them, then none; the first guesses first."""
    drafts = process(fan_out=2)
    report(drafts, seen())
    drafts.advance(ROUND_S)
    prepared = {
        (number, rank)
        for number in range(4)
        for rank in range(2)
        if drafts.block_for("a", 1, (number, rank), ROUND_S)
    }
    assert len(prepared) == 2
    assert (3, 0) in prepared
    assert drafts.num_prepared("a", 1, ROUND_S) == 2


def test_an_outcome_of_another_round_finds_nothing():
    drafts = process()
    report(drafts, seen(number=1))
    assert drafts.block_for("a", 1, (3, 0), 0.005) is not None
    assert drafts.block_for("a", 2, (3, 0), 0.005) is None
    report(drafts, seen(number=2, outcome=(3, 0)), at_s=0.01)
    assert drafts.block_for("a", 1, (3, 0), 0.02) is None


def test_a_row_without_a_block_needs_one_to_tell_what_may_follow():
    drafts = process()
    report(drafts, seen(verify_len=0, has_block=False))
    assert drafts.block_for("a", 1, (0, 0), 1.5 * BLOCK_S) is None
    assert drafts.block_for("a", 1, (0, 0), 2.5 * BLOCK_S) is not None


def test_who_is_waited_for_drafts_that_first_and_whole():
    drafts = process(token_s=0.0005)
    report(drafts, seen(verify_len=0, has_block=False, asked_anyway=True), seen("b"))
    drafts.advance(0.0015)
    found = drafts.root_of("a", 1)
    assert found.num_tokens == 4
    assert found.ready_s == pytest.approx(BLOCK_S + 4 * 0.0005)


def test_chains_are_cut_to_the_time_there_is():
    """Two milliseconds a token: three are over before the target looks, and not four."""
    drafts = process(block_s=0.0, token_s=0.002)
    report(drafts, seen())
    assert drafts.block_for("a", 1, (3, 0), ROUND_S).num_tokens == 4
    short = process(block_s=0.0, token_s=0.0028)
    report(short, seen())
    assert short.block_for("a", 1, (3, 0), ROUND_S).num_tokens == 3


def test_what_would_be_late_is_tried_now_and_then_alone():
    drafts = process(block_s=2 * ROUND_S)
    began = 0
    for number in range(16):
        at_s = 10 * ROUND_S * number
        report(drafts, seen(number=number, outcome=(0, 99)), at_s=at_s)
        drafts.advance(at_s + 5 * ROUND_S)
        began += drafts.num_prepared("a", number, at_s + 5 * ROUND_S)
    assert began == 2  # of sixteen rounds, one in eight


def test_reports_of_several_targets_are_heard_as_they_arrive():
    drafts = process()
    report(drafts, seen("late"), at_s=0.02)
    report(drafts, seen("early"), at_s=0.01)
    assert drafts.block_for("early", 1, (3, 0), 0.012) is not None
    assert drafts.block_for("late", 1, (3, 0), 0.012) is None
    assert drafts.block_for("late", 1, (3, 0), 0.022) is not None


def test_who_has_ended_is_forgotten():
    drafts = process()
    report(drafts, seen())
    drafts.advance(ROUND_S)
    drafts.forget("a")
    assert drafts.block_for("a", 1, (3, 0), ROUND_S) is None


def test_time_that_nothing_is_drafted_in_is_not_busy():
    drafts = process()
    report(drafts, seen(), at_s=1.0)
    drafts.advance(2.0)
    assert drafts.busy_s == pytest.approx(BLOCK_S)
    assert drafts.now_s == pytest.approx(1.0 + BLOCK_S)
