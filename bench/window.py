# pyright: strict
"""The time in which all rows of a batch decode, as a client sees it."""

from collections.abc import Sequence

# Tokens of one round reach the client row by row, a fraction of this apart; rounds take longer.
_SAME_ROUND_S = 0.002


def decode_window(arrivals_s: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From the round of the last first token to that of the first last one; both are whole.

    `arrivals_s`: of every row, in order. A window that ended with one row's token would have the
    time of that round, but of its tokens only those that came before.
    """
    start_s = max(row[0] for row in arrivals_s)
    end_s = max(start_s, min(row[-1] for row in arrivals_s))
    in_order = sorted(at for row in arrivals_s for at in row)
    return _end_of_round(start_s, in_order), _end_of_round(end_s, in_order)


def _end_of_round(at_s: float, in_order: Sequence[float]) -> float:
    for arrival_s in in_order:
        if at_s <= arrival_s <= at_s + _SAME_ROUND_S:
            at_s = arrival_s
    return at_s
