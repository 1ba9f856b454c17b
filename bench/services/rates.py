# pyright: strict
"""From traces to rates: each gives (over, under) for one trace, and rates are sums over sums.

Rounds are those in which all rows decode.
"""

from collections.abc import Callable, Sequence

from bench.bootstrap import Interval, Rate, interval, ratio
from bench.processes import Usage
from bench.services.records import Delta, Trace

Pair = tuple[float, float]
Measure = Callable[[Trace], Pair]


def rate(traces: Sequence[Trace], measure: Measure) -> Rate:
    """One entry a trace, so that a group's prompts are drawn together."""
    return Rate.of([measure(trace) for trace in traces])


def value(traces: Sequence[Trace], measure: Measure) -> float | None:
    """The rate without its spread; None where there is nothing to divide by."""
    found = rate(traces, measure)
    return found.value if found.under.sum() > 0 else None


def spread(traces: Sequence[Trace], measure: Measure) -> Interval | None:
    """With its interval over groups."""
    found = rate(traces, measure)
    return interval(found) if found.under.sum() > 0 else None


def spread_ratio(
    over: Sequence[Trace], under: Sequence[Trace], measure: Measure
) -> Interval | None:
    """Of the same groups' rates in two arms."""
    rates = rate(over, measure), rate(under, measure)
    if not all(one.under.sum() > 0 and one.over.sum() > 0 for one in rates):
        return None
    return ratio(*rates)


# --- at the client ------------------------------------------------------------------------------


def tokens_per_s(trace: Trace) -> Pair:
    return sum(d.num_tokens for d in trace.deltas), trace.decode_s


def accept_len(trace: Trace) -> Pair:
    """Tokens of a row and round, the recovery or bonus token included."""
    return sum(d.num_tokens for d in trace.deltas), len(trace.deltas)


def seconds_per_round(trace: Trace) -> Pair:
    return trace.decode_s, len(trace.deltas) / len(trace.rows)


def hits(trace: Trace) -> Pair:
    """Rows and rounds for which a block had been prepared, among those looked up."""
    looked_up = [d for d in trace.deltas if d.hit is not None]
    return sum(d.hit is True for d in looked_up), len(looked_up)


def hits_after(was_hit: bool) -> Measure:
    """The same among rounds whose forerunner in the row was a hit, or a miss."""

    def measure(trace: Trace) -> Pair:
        pairs = [
            (before, now)
            for row in trace.rows
            for before, now in zip(row.deltas, row.deltas[1:], strict=False)
            if before.hit is was_hit and now.hit is not None
        ]
        return sum(now.hit is True for _, now in pairs), len(pairs)

    return measure


def hit_len(trace: Trace) -> Pair:
    """Tokens of a row and round with a prepared block."""
    return _len_where(trace, lambda d: d.hit is True)


def miss_len(trace: Trace) -> Pair:
    return _len_where(trace, lambda d: d.hit is False)


def _len_where(trace: Trace, wanted: Callable[[Delta], bool]) -> Pair:
    found = [d.num_tokens for d in trace.deltas if wanted(d)]
    return sum(found), len(found)


# --- by the service and the kernel --------------------------------------------------------------


def counted(over: str, under: str) -> Measure:
    """One of the service's counters by another; (0, 0) while it does not report both."""

    def measure(trace: Trace) -> Pair:
        counters = trace.counters
        if over not in counters or under not in counters:
            return 0.0, 0.0
        return counters[over], counters[under]

    return measure


def processor_s(role: str) -> Measure:
    """Processor time of a process a round, after every row's first token."""

    def measure(trace: Trace) -> Pair:
        return trace.usage.get(role, Usage()).ran_s, trace.num_rounds

    return measure
