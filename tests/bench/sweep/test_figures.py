"""What figures are made of."""

import msgspec
import pytest

from bench.services.records import Delta
from bench.sweep import figures
from bench.sweep.plan import Load, Targets
from bench.sweep.records import Cell, Streamed, answers_of
from tests.bench.sweep.made_up import answer, cell

SOON = Targets(ttft_ms=200.0, tpot_ms=110.0)


def streamed(sent_s: float, *arrivals: tuple[float, int]) -> Streamed:
    """Of (when, how many tokens)."""
    deltas = [Delta(at_s, count, False) for at_s, count in arrivals]
    return Streamed(
        sent_s=sent_s, deltas=deltas, token_ids=list(range(sum(n for _, n in arrivals)))
    )


def value(cells: list[Cell], measure: figures.Measure) -> float:
    found = figures.spread(cells, measure)
    assert found is not None
    return found.value


def opened(*answers, took_s: float) -> Cell:
    load = Load(rate=2.0, arrivals="poisson")
    return msgspec.structs.replace(cell("off"), load=load, answers=list(answers), took_s=took_s)


def test_a_closed_loop_is_whole_until_nothing_takes_the_place_of_what_ends():
    answers = answers_of(
        [
            streamed(0.0, (1.0, 1), (2.0, 3)),
            streamed(0.0, (1.0, 1), (3.0, 2)),
            streamed(2.0, (2.5, 1), (3.5, 4), (6.0, 5)),
        ],
        Load(in_flight=2),
    )
    # The first one's place was taken; when the second ends nobody is left to take its.
    assert [each.window_s for each in answers] == [2.0, 3.0, 1.0]
    assert [each.window_tokens for each in answers] == [4, 3, 1]
    assert [each.num_tokens for each in answers] == [4, 3, 10]
    assert [each.num_first for each in answers] == [1, 1, 1]
    assert [each.num_rounds for each in answers] == [1, 1, 2]
    made = msgspec.structs.replace(cell("off", in_flight=2), answers=answers)
    assert value([made], figures.tokens_per_s) == pytest.approx(8 / 3)


def test_a_loop_that_has_as_many_requests_as_are_in_flight_ends_with_the_first():
    answers = answers_of([streamed(0.0, (1.0, 2)), streamed(0.0, (4.0, 2))], Load(in_flight=2))
    assert [(each.window_tokens, each.window_s) for each in answers] == [(2, 1.0), (0, 1.0)]


def test_an_open_loop_counts_whole_and_from_when_requests_were_to_arrive():
    answers = answers_of(
        [streamed(0.0, (1.0, 1), (2.0, 3)), streamed(0.5, (3.0, 1), (4.0, 1))],
        Load(rate=2.0, arrivals="poisson"),
    )
    assert [each.window_tokens for each in answers] == [4, 2]
    assert [each.ttft_s for each in answers] == [1.0, 2.5]
    assert value([opened(*answers, took_s=4.0)], figures.tokens_per_s) == pytest.approx(6 / 4)


def test_what_a_round_was_is_told_by_its_delta():
    deltas = [
        Delta(1.0, 1, False), Delta(2.0, 3, True), Delta(3.0, 1, False), Delta(4.0, 4, True, True),
        Delta(5.0, 1, False, False),
    ]  # fmt: skip
    one = Streamed(sent_s=0.0, deltas=deltas, token_ids=[1] * 10, num_verified=8)
    (found,) = answers_of([one], Load(in_flight=1))
    assert (found.num_rounds, found.num_sync, found.num_lookups, found.num_hits) == (4, 1, 2, 1)
    made = [msgspec.structs.replace(cell("auto"), answers=[found])]
    assert figures.mode_shares(made) == {"async": 0.5, "sync": 0.25, "off": 0.25}
    assert value(made, figures.accept_len) == pytest.approx(9 / 4)
    assert value(made, figures.verified) == pytest.approx(2.0)
    assert value(made, figures.hits) == pytest.approx(0.5)


def test_equal_texts_have_equal_digests_and_others_do_not():
    one, two = (
        Streamed(sent_s=0.0, deltas=[Delta(1.0, 2, False)], token_ids=ids)
        for ids in ([1, 23], [12, 3])
    )
    first, again, other = (
        answers_of([each], Load(in_flight=1))[0].text for each in (one, one, two)
    )
    assert first == again != other


def test_rates_of_users_leave_the_first_tokens_out():
    slow, fast = answer(21, seconds=4.1), answer(21, seconds=2.1)
    made = [msgspec.structs.replace(cell("off"), answers=[slow, fast])]
    assert value(made, figures.tokens_per_s_per_user) == pytest.approx(40 / 6)
    assert slow.tpot_s == pytest.approx(0.2)
    single = answer(1, seconds=0.1)
    assert single.tpot_s is None
    alone = [msgspec.structs.replace(cell("off"), answers=[single])]
    assert figures.tpot_ms(alone) is None
    assert figures.spread(alone, figures.tokens_per_s_per_user) is None
    assert figures.mode_shares(alone) == {}


def test_percentiles_are_values_that_so_many_do_not_exceed():
    answers = [answer(first_s=n / 100, last_s=3.0) for n in range(1, 101)]
    found = figures.ttft_ms([msgspec.structs.replace(cell("off"), answers=answers)])
    assert found is not None
    values = [each.value for each in (found.p50, found.p95, found.p99)]
    assert values == pytest.approx([500.0, 950.0, 990.0])
    assert found.p50.low < 500 < found.p50.high
    assert found.p99.high <= 1000.0


@pytest.mark.parametrize(
    ("first_s", "last_s", "is_in_time"),
    [(0.2, 2.4, True), (0.201, 2.4, False), (0.1, 2.31, False), (0.1, 0.1, True)],
)
def test_a_request_is_in_time_if_its_first_token_and_its_others_are(first_s, last_s, is_in_time):
    assert figures.is_in_time(answer(21, first_s=first_s, last_s=last_s), SOON) is is_in_time


def test_goodput_is_what_is_in_time_a_second_of_the_whole_turn():
    good, late = answer(21, seconds=2.1), answer(21, seconds=9.0)
    made = [opened(good, late, good, took_s=10.0)]
    assert value(made, figures.goodput(SOON)) == pytest.approx(0.2)
    assert value(made, figures.in_time(SOON)) == pytest.approx(2 / 3)
    assert value([opened(late, took_s=9.0)], figures.goodput(SOON)) == 0.0


def test_repeats_that_differ_widen_an_interval_beyond_that_of_their_answers():
    equal = [cell("off", 10.0, repeat=n, num_answers=50) for n in range(3)]
    apart = [cell("off", speed, repeat=n, num_answers=50) for n, speed in enumerate((8, 10, 12))]
    known, doubtful = (figures.spread(cells, figures.tokens_per_s) for cells in (equal, apart))
    assert known is not None
    assert doubtful is not None
    assert known.high - known.low == pytest.approx(0.0)
    assert doubtful.low == pytest.approx(8.0)
    assert doubtful.high == pytest.approx(12.0)


def test_counters_are_of_all_turns_together():
    made = [cell("off"), cell("off", repeat=1)]
    assert figures.ms_per_round(made, "forward_s") == pytest.approx(50.0)
    assert figures.ms_per_round([msgspec.structs.replace(made[0], counters={})], "draft_s") is None
