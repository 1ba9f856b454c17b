# pyright: strict
"""Which rounds have something drafted in the time that is left, and what is tried without any.

Times may have changed, and what is never drafted is never timed. So one in eight times that no time
is left, one block is drafted nevertheless: more of it would hold up the next report, and whoever
waits for its blocks. Whose root was tried has what follows it tried too, or nothing would be
learned.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from draft_node.prespeculation.batch_size import BatchSize
from draft_node.prespeculation.plan import Plan

_TRIED_EVERY = 8


class TimedRound(Protocol):
    """What a round is, as far as its time goes."""

    is_closed: bool  # nothing more is drafted for it
    is_rushed: bool  # its first draft batch began when there was no time left

    @property
    def plan(self) -> Plan | None: ...


_Round = TypeVar("_Round", bound=TimedRound)


class Timely:
    """Of one draft process."""

    def __init__(self, sizes: BatchSize) -> None:
        self._sizes = sizes
        self._num_without_time = 0

    def with_roots(
        self, rounds: Sequence[_Round], *, needs_probs: bool, left_s: float
    ) -> list[_Round]:
        """As many as can have roots, and one outcome at least, within `left_s` seconds.

        Without time for any: one of them now and then, and otherwise all are closed.
        """
        left_s -= self._sizes.least_s(1, needs_probs=needs_probs)
        count = len(rounds)
        while count and self._sizes.least_s(count, needs_probs=needs_probs) > left_s:
            count //= 2
        if count:
            return list(rounds[:count])
        if not self._is_tried():
            for each in rounds:
                each.is_closed = True
            return []
        for each in rounds:
            each.is_rushed = True
        return list(rounds[:1])

    def num_outcomes(
        self, rounds: Sequence[TimedRound], most: int, *, needs_probs: bool, left_s: float
    ) -> int:
        """Of these rounds' outcomes, as many as are drafted at once, at most `most`; 0: none."""
        size = self._sizes.size(
            most,
            needs_probs=needs_probs,
            left_s=left_s,
            values=[each.plan.values_due for each in rounds if each.plan is not None],
        )
        first = [each for each in rounds if each.plan is not None and not each.plan.num_taken]
        if size or not first:
            return size
        if not any(each.is_rushed for each in first) and not self._is_tried():
            return 0
        for each in first:
            each.is_rushed = True
        return 1

    def _is_tried(self) -> bool:
        self._num_without_time += 1
        return self._num_without_time % _TRIED_EVERY == 1
