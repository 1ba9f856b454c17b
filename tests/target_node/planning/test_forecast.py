"""What modes are expected to do follows from what was measured at start, by the papers' model."""

import math

import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.types import DraftTime
from target_node.planning.acceptance import Acceptance
from target_node.planning.draft_pace import DraftPace
from target_node.planning.forecast import (
    AsynchronousRounds,
    Behind,
    Forecasts,
    ForwardTimes,
    HitPower,
    OnMiss,
    PlainRounds,
    SynchronousRounds,
)
from target_node.planning.mode_chooser import ModeChooser
from target_node.planning.mode_speeds import BatchLoad
from target_node.planning.step_table import Cell, Slopes, StepSize, StepTable

ONE, MANY = BatchLoad.of(1, "greedy"), BatchLoad.of(16, "greedy")
GREEDY, COUPLED = (Behind(kind, is_hit=True) for kind in ("greedy", "coupled"))
HALVES = UsualAcceptance({"greedy": [0.5, 0.25, 0.125]})


def table(token_s: float = 0.0) -> StepTable:
    """A forward of one token takes a second, each further one `token_s`."""
    found = StepTable()
    found.learn({n: Cell(1 + (n - 1) * token_s, 8) for n in (1, 2, 64, 128)}, Slopes())
    return found


def times(token_s: float = 0.0) -> ForwardTimes:
    return ForwardTimes(table(token_s).freeze())


def one_pass(seconds: float, *, most: int = 16) -> DraftTimes:
    """Blocks of one pass, however many."""
    return DraftTimes([DraftTime(1, seconds, 0.0), DraftTime(most, seconds, 0.0)])


def synchronous(times: DraftTimes, usual: UsualAcceptance = HALVES) -> SynchronousRounds:
    return SynchronousRounds(Acceptance(3, usual), DraftPace(lambda: times))


def asynchronous(times: DraftTimes, on_miss: OnMiss | None = None, power: float = 1.0):
    hits = HitPower({GREEDY: power})
    return AsynchronousRounds(
        Acceptance(3, HALVES),
        drafts=DraftPace(lambda: times),
        num_processes=1,
        most_outcomes=8,
        hits=hits,
        on_miss=on_miss or OnMiss(),
        slower=1.1,
    )


def test_a_plain_round_makes_a_token_a_row():
    assert PlainRounds().expected(ONE, times()) == (1, 1.0)
    assert PlainRounds().expected(MANY, times(0.1)) == (16, pytest.approx(2.5))


def test_a_synchronous_round_takes_draft_and_forward():
    expected = synchronous(one_pass(0.25)).expected(ONE, times())
    assert expected.tokens == pytest.approx(1.875)
    assert expected.seconds == pytest.approx(1.25)


def test_no_more_is_verified_than_pays():
    """A token costs .3 seconds: the first brings .5 of 1.3, the second .25 of 1.6."""
    expected = synchronous(one_pass(0.0)).expected(ONE, times(0.3))
    assert expected.tokens == pytest.approx(1.5)


def test_a_chain_is_no_longer_than_pays():
    chain = DraftTimes([DraftTime(1, 0.0, 0.3)])
    best = synchronous(chain).best(ONE, times())
    assert (best.num_drafted, best.draft_s) == (1, pytest.approx(0.3))


def test_a_drafter_with_something_for_few_rows_makes_little():
    rare = UsualAcceptance({"greedy": [0.5, 0.25, 0.125]}, coverage=0.2)
    expected = synchronous(one_pass(0.0), rare).expected(ONE, times())
    assert expected.tokens == pytest.approx(1 + 0.2 * 0.875)


def test_an_asynchronous_round_hides_the_draft_and_pays_for_misses():
    """All 8 outcomes are in time, and r = 1: one in nine is missed."""
    expected = asynchronous(one_pass(0.2)).expected(ONE, times())
    hit = 8 / 9
    assert expected.tokens == pytest.approx(hit * 1.75 + (1 - hit))
    assert expected.seconds == pytest.approx(1.1)  # of memory that both read


def test_what_is_not_drafted_in_time_is_not_hit():
    never = asynchronous(one_pass(5.0)).expected(ONE, times())
    assert never.tokens == 1
    few = asynchronous(DraftTimes([DraftTime(1, 0.4, 0.0), DraftTime(16, 2.0, 0.0)]))
    assert few.num_outcomes(1, 3, 1.0) < 8


def test_a_row_that_missed_has_its_own_block_drafted_first_unless_somebody_else_did():
    """Two passes would be too long for the round: what is missed once is missed for ever."""
    slow = DraftTimes([DraftTime(1, 0.5, 0.0)])
    steps = times()
    assert asynchronous(slow).expected(ONE, steps).tokens == 1
    waiting = asynchronous(slow, OnMiss(waits=True))
    hit = 1 - 1 / 2  # one outcome is in time, and r = 1
    waits = (1 - hit) * 0.5
    expected = waiting.expected(ONE, steps)
    assert expected.tokens == pytest.approx(1.75)
    assert expected.seconds == pytest.approx(1.1 + waits)


def test_what_enters_contexts_takes_time_first():
    late = DraftTimes([DraftTime(1, 0.5, 0.0)], enter_s=0.6)
    assert asynchronous(late, OnMiss(waits=True)).num_outcomes(1, 3, 1.1) == 0
    beside = synchronous(DraftTimes([DraftTime(1, 0.5, 0.0)], enter_s=0.25))
    assert beside.expected(ONE, times()).seconds == pytest.approx(1.75)


@pytest.mark.parametrize("on_miss", ["here", "waits"])
def test_what_is_done_about_misses_counts_with_its_time(on_miss):
    beside = synchronous(one_pass(0.5))
    done = OnMiss(drafts_here=beside) if on_miss == "here" else OnMiss(waits=True)
    quick = one_pass(0.2)
    plain, helped = (asynchronous(quick, each) for each in (OnMiss(), done))
    steps = times()
    assert helped.expected(ONE, steps).tokens > plain.expected(ONE, steps).tokens
    assert helped.expected(ONE, steps).seconds > plain.expected(ONE, steps).seconds


def test_what_is_hit_after_a_miss_is_another_matter():
    """SSD, Theorem 7: of 8 outcomes 8 in 9 are hit behind what was prepared, and 1 in 3 else."""
    rounds = asynchronous(one_pass(0.2))
    rounds.hits._powers[GREEDY._replace(is_hit=False)] = math.log(1.5) / math.log(9)
    hit = (1 / 3) / (1 - 8 / 9 + 1 / 3)
    expected = rounds.expected(ONE, times())
    assert expected.tokens == pytest.approx(hit * 1.75 + (1 - hit))


def test_where_no_draft_process_was_there_yet_nothing_is_hit():
    assert asynchronous(DraftTimes()).expected(ONE, times()).tokens == 1


def test_what_is_left_of_a_kind_where_nobody_drafts_is_its_acceptance():
    assert BatchLoad.of(1, "greedy, alone").kind == BatchLoad.of(1, "greedy").kind == "greedy"


def test_many_rows_leave_less_time_for_each():
    times = DraftTimes([DraftTime(1, 0.05, 0.0), DraftTime(16, 0.8, 0.0)])
    rounds = asynchronous(times)
    assert rounds.num_outcomes(1, 3, 1.0) == 8
    assert rounds.num_outcomes(16, 3, 1.0) == pytest.approx(1, abs=0.1)


def test_the_power_of_hits_is_learned_apart_for_every_kind():
    hits = HitPower()
    for number in range(2000):
        hits.observe(GREEDY, 7, float(number % 10 != 0))
        hits.observe(COUPLED, 7, 0.5)
    assert hits.rate(GREEDY, 7) == pytest.approx(0.9, abs=0.04)
    assert hits.rate(COUPLED, 7) == pytest.approx(0.5, abs=0.02)
    assert hits.rate(GREEDY, 1) < hits.rate(GREEDY, 3) < hits.rate(GREEDY, 15)
    before = hits.rate(GREEDY, 7)
    hits.observe(GREEDY, 0, 0.0)  # nothing was prepared: that says nothing
    assert hits.rate(GREEDY, 7) == before


@pytest.mark.parametrize(
    ("draft_s", "token_s", "first"), [(0.1, 0.0, "sync"), (2.0, 0.0, "off"), (0.1, 0.9, "off")]
)
def test_a_fresh_service_begins_with_what_is_expected_to_be_fastest(draft_s, token_s, first):
    models = {"off": PlainRounds(), "sync": synchronous(one_pass(draft_s))}
    forecasts = Forecasts(models, table(token_s))
    chooser = ModeChooser(["off", "sync"], safe="off", forecast=forecasts)
    rounds: list[str] = []
    while len(rounds) < 300:
        mode, count = chooser.next_run(ONE)
        speed = forecasts.speeds(ONE)[mode]
        for age in range(count):
            chooser.observe(ONE, mode, 2, 2 / speed, age=age + 6)
        rounds += count * [mode]
    assert rounds.count(first) == len(rounds)  # nothing is tried that is known to be slower


def test_a_forecast_that_is_wrong_is_corrected_by_what_is_measured():
    """Foretold 1.7 times as fast as plain, and .8 in truth."""
    models = {"off": PlainRounds(), "sync": synchronous(one_pass(0.001))}
    fast = StepTable()
    fast.learn({1: Cell(0.01, 8), 64: Cell(0.01, 8)}, Slopes())
    forecasts = Forecasts(models, fast)
    chooser = ModeChooser(["off", "sync"], safe="off", forecast=forecasts)
    truth, rounds = {"off": 100, "sync": 80}, []
    while len(rounds) < 1500:
        mode, count = chooser.next_run(ONE)
        for age in range(count):
            chooser.observe(ONE, mode, 2, 2 / truth[mode], age=age + 6)
        rounds += count * [mode]
    assert rounds[0] == "sync"
    assert rounds[-500:].count("off") > 450


def test_speeds_and_their_logarithms_are_told_in_order():
    models = {"off": PlainRounds(), "sync": synchronous(one_pass(0.25))}
    forecasts = Forecasts(models, table())
    logs, spreads = forecasts(ONE)
    assert logs == pytest.approx([0.0, math.log(1.5)])
    assert spreads[0] < spreads[1]


def test_what_is_learned_counts_once_somebody_refreshes():
    """Blocks are drawn meanwhile that the next choice is about."""
    table_now, acceptance = table(), Acceptance(3, HALVES)
    beside = SynchronousRounds(acceptance, DraftPace(lambda: one_pass(0.25)))
    hits = HitPower({GREEDY: 1.0})
    ahead = AsynchronousRounds(
        acceptance,
        drafts=DraftPace(lambda: one_pass(0.2)),
        num_processes=1,
        most_outcomes=8,
        hits=hits,
        on_miss=OnMiss(drafts_here=beside),
        slower=1.1,
    )
    models = {"off": PlainRounds(), "sync": beside, "async": ahead}
    forecasts, unasked = (Forecasts(models, table_now) for _ in range(2))
    before = forecasts.speeds(ONE)
    for _ in range(50):
        beside.drafts.observe(1, 3, 0.5)
        ahead.drafts.observe(8, 4, 5.0)
        acceptance.of("greedy").observe(3, 0)
        hits.observe(GREEDY, 8, 0.0)
        table_now.observe(StepSize(1, 1, 300), 1.4)
    assert forecasts.speeds(ONE) == before
    assert unasked.speeds(ONE) == before
    forecasts.refresh()
    after = forecasts.speeds(ONE)
    assert all(after[mode] < before[mode] for mode in models)
