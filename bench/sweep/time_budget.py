# pyright: strict
"""How many requests a turn may have, so that a sweep with a budget of time measures all loads.

What is left of the budget is shared out over the comparisons that are left, by what they are
expected to take; one that would take more than its share is asked fewer requests. All arms of it
are asked the same ones, so ratios stay paired.
"""

from collections.abc import Sequence

from bench.sweep.plan import Load, Plan

_ALONE_S = 3.0  # of one answer that has the service to itself: only ratios of loads matter
_SCALING = 0.7  # so much of what is put beside an answer comes for nothing


def expected_s(load: Load, plan: Plan, num_arms: int) -> float:
    """Of one comparison with all its requests, before anything was measured.

    Arms have their turns one after the other. An open loop lasts as long as requests arrive, and
    then until the last one is answered.
    """
    count = plan.requests_of(load)
    if load.is_closed:
        return num_arms * count * _ALONE_S / load.in_flight**_SCALING
    return num_arms * (count / load.rate + _ALONE_S)


def allowance_s(left_s: float, expected: Sequence[float]) -> float:
    """Of the first of several comparisons that are left, `expected` to take so long."""
    return max(0.0, left_s) * expected[0] / sum(expected)


def affordable(planned: int, least: int, *, request_s: float, allowance_s: float) -> int:
    """Requests of each turn: what was planned, or fewer, but never fewer than `least`.

    `request_s`: of all arms of the comparison together, for one request.
    """
    if planned * request_s <= allowance_s:
        return planned
    return min(planned, max(least, int(allowance_s / request_s)))
