# pyright: strict
"""The time in which all rows of a batch decode, as a client sees it."""

import itertools
import math
import statistics
from collections.abc import Sequence

# Tokens of one round reach the client row by row, at most so far apart, and less than half a round.
_SAME_ROUND_S = 0.002


def decode_window(arrivals_s: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From the round of the last first token to that of the first last one; both are whole.

    `arrivals_s`: of every row, in order. A window that ended with one row's token would have the
    time of that round, but of its tokens only those that came before.
    """
    start_s = max(row[0] for row in arrivals_s)
    end_s = max(start_s, min(row[-1] for row in arrivals_s))
    in_order = sorted(at for row in arrivals_s for at in row)
    apart_s = min(_SAME_ROUND_S, _round_s(arrivals_s) / 2)
    return _end_of_round(start_s, in_order, apart_s), _end_of_round(end_s, in_order, apart_s)


def _round_s(arrivals_s: Sequence[Sequence[float]]) -> float:
    """Between two rounds of one row; infinite where none has two."""
    gaps_s = [b - a for row in arrivals_s for a, b in itertools.pairwise(sorted(set(row)))]
    return statistics.median(gaps_s) if gaps_s else math.inf


def _end_of_round(at_s: float, in_order: Sequence[float], apart_s: float) -> float:
    for arrival_s in in_order:
        if at_s <= arrival_s <= at_s + apart_s:
            at_s = arrival_s
    return at_s
