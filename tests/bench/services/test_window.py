"""Rounds at the edges of the window count whole, whatever order their rows arrive in."""

import pytest

from bench.rounds import decode_window
from bench.services.rates import seconds_per_round, tokens_per_s
from bench.services.records import Delta, RowTrace, Trace

ROUND_S, APART_S = 0.02, 0.0005


def arrivals(first_round: int, num_rounds: int, place: int) -> list[float]:
    """Of the row that is delivered as number `place` of each round."""
    return [ROUND_S * (first_round + n) + APART_S * place for n in range(num_rounds)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_round_counts_whole_or_not_at_all(order):
    # Rows begin one round after the other; the second is over first, after its tenth round.
    counts = [14, 10, 13, 12]
    rows = [arrivals(row, count, order[row]) for row, count in enumerate(counts)]
    start_s, end_s = decode_window(rows)
    assert (end_s - start_s) / ROUND_S == pytest.approx(7)
    inside = [sum(start_s < at <= end_s for at in row) for row in rows]
    assert inside == [7] * 4


def test_rates_of_a_batch_do_not_depend_on_the_order_of_its_rows():
    found = set()
    for order in ((0, 1), (1, 0)):
        rows = [
            RowTrace(
                deltas=[Delta(at, 3, True) for at in arrivals(0, count, order[row])], token_ids=[]
            )
            for row, count in enumerate((9, 6))
        ]
        trace = Trace(rows=rows, usage={}, counters={}, foreign_share=0.0)
        num_tokens, seconds = tokens_per_s(trace)
        duration_s, num_rounds = seconds_per_round(trace)
        assert duration_s / num_rounds == pytest.approx(ROUND_S)
        found.add((num_tokens, round(seconds, 9)))
    assert found == {(2 * 5 * 3, 5 * ROUND_S)}


def test_one_row_has_the_window_of_its_tokens():
    assert decode_window([[1.0, 1.5, 2.0]]) == (1.0, 2.0)
    assert decode_window([[1.0], [3.0]]) == (3.0, 3.0)  # never side by side


def test_rounds_of_less_than_a_millisecond_are_told_apart():
    first = [0.017 + 0.0009 * i for i in range(90)]
    second = [0.0112 + 0.0009 * i + 0.0001 for i in range(96)]
    start_s, end_s = decode_window([first, second])
    assert start_s == pytest.approx(first[0], abs=0.0005)
    assert end_s == pytest.approx(min(first[-1], second[-1]), abs=0.0005)
