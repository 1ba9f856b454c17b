# pyright: strict
"""From kept turns to rates: each figure gives (over, under) for an answer, and sums are divided.

An interval draws turns first, and answers within the drawn ones: answers of one turn share what the
machine did meanwhile. Arms are compared on the same answers of the same turns.
"""

from collections.abc import Callable, Sequence

import msgspec

from bench.bootstrap import Interval, Rate, interval, quantiles, ratio
from bench.services.service import ASYNC, OFF, SYNC
from bench.sweep.plan import Targets
from bench.sweep.records import Answer, Cell

Pair = tuple[float, float]
Measure = Callable[[Cell, Answer], Pair]
SHARES = (0.5, 0.95, 0.99)


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, over answers."""

    p50: Interval
    p95: Interval
    p99: Interval


def tokens_per_s(cell: Cell, answer: Answer) -> Pair:
    """Of all requests together.

    Of a closed loop while it is whole: with N requests in flight all the time, what they spend in
    flight adds up to N times the time that passes. Of an open loop from the first request to the
    last token.
    """
    if cell.load.is_closed:
        return answer.window_tokens, answer.window_s / cell.load.in_flight
    return answer.num_tokens, cell.took_s / len(cell.answers)


def tokens_per_s_per_user(_: Cell, answer: Answer) -> Pair:
    """After the first tokens."""
    return answer.num_tokens - answer.num_first, answer.last_s - answer.first_s


def accept_len(_: Cell, answer: Answer) -> Pair:
    """Tokens of a row and round, the recovery or bonus token included."""
    return answer.num_tokens - answer.num_first, answer.num_rounds


def verified(_: Cell, answer: Answer) -> Pair:
    """Drafted tokens verified in a row and round, those that drafted nothing included."""
    return answer.num_verified, answer.num_rounds


def hits(_: Cell, answer: Answer) -> Pair:
    return answer.num_hits, answer.num_lookups


def goodput(targets: Targets) -> Measure:
    """Requests a second whose first token and whose further ones came in time."""

    def measure(cell: Cell, answer: Answer) -> Pair:
        return float(is_in_time(answer, targets)), cell.took_s / len(cell.answers)

    return measure


def in_time(targets: Targets) -> Measure:
    """The share of such requests."""
    return lambda _, answer: (float(is_in_time(answer, targets)), 1.0)


def is_in_time(answer: Answer, targets: Targets) -> bool:
    tpot_s = answer.tpot_s or 0.0
    return 1e3 * answer.ttft_s <= targets.ttft_ms and 1e3 * tpot_s <= targets.tpot_ms


def rate(cells: Sequence[Cell], measure: Measure) -> Rate:
    """One entry an answer; turns are clusters."""
    pairs = [measure(cell, answer) for cell in cells for answer in cell.answers]
    return Rate.of(pairs, [cell.repeat for cell in cells for _ in cell.answers])


def spread(cells: Sequence[Cell], measure: Measure) -> Interval | None:
    """With its interval; None where there is nothing to divide by."""
    found = rate(cells, measure)
    return interval(found) if found.under.sum() > 0 else None


def compare(over: Rate, under: Rate) -> Interval | None:
    """Their ratio, on the same answers; None where one is of nothing."""
    if not all(one.under.sum() > 0 and one.over.sum() > 0 for one in (over, under)):
        return None
    return ratio(over, under)


def ttft_ms(cells: Sequence[Cell]) -> Percentiles | None:
    return _percentiles(cells, lambda answer: answer.ttft_s)


def tpot_ms(cells: Sequence[Cell]) -> Percentiles | None:
    """None where no answer has a second round."""
    return _percentiles(cells, lambda answer: answer.tpot_s)


def _percentiles(
    cells: Sequence[Cell], seconds: Callable[[Answer], float | None]
) -> Percentiles | None:
    known = [
        (1e3 * found, cell.repeat)
        for cell in cells
        for answer in cell.answers
        if (found := seconds(answer)) is not None
    ]
    if not known:
        return None
    p50, p95, p99 = quantiles([ms for ms, _ in known], SHARES, [repeat for _, repeat in known])
    return Percentiles(p50=p50, p95=p95, p99=p99)


def mode_shares(cells: Sequence[Cell]) -> dict[str, float]:
    """Which mode the rounds of rows ran, as far as the client can tell.

    A synchronous round in which nothing was worth verifying looks like plain decoding.
    """
    answers = [answer for cell in cells for answer in cell.answers]
    num_rounds = sum(answer.num_rounds for answer in answers)
    counts = {
        ASYNC: sum(answer.num_lookups for answer in answers),
        SYNC: sum(answer.num_sync for answer in answers),
    }
    counts[OFF] = num_rounds - sum(counts.values())
    return {mode: count / num_rounds for mode, count in counts.items() if count}


def ms_per_round(cells: Sequence[Cell], name: str) -> float | None:
    """One of the service's own counters of seconds, of a decode round of all rows."""
    num_rounds = sum(cell.counters.get("num_decode_rounds", 0.0) for cell in cells)
    seconds = sum(cell.counters.get(name, 0.0) for cell in cells)
    return 1e3 * seconds / num_rounds if num_rounds else None
