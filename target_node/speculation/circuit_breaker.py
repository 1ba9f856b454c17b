"""A drafter in this process that fails costs its drafts, never a request; in the end, itself."""

import logging
from collections.abc import Callable, Mapping

from specserve.types import Speculation
from target_node.sequence import Sequence

MAX_FAILURES = 5  # in a row; then the drafter is asked no more

log = logging.getLogger(__name__)

Speculations = Mapping[Sequence, Speculation]


class CircuitBreaker:
    """Counts the failures of one drafter since it last worked."""

    def __init__(self) -> None:
        self._num_failures = 0  # in a row
        self._total = 0

    def ask(self, draft: Callable[[], Speculations]) -> Speculations:
        """What `draft` returns; nothing where it raises, or did too often in a row."""
        if self._num_failures >= MAX_FAILURES:
            return {}
        try:
            drafted = draft()
        except Exception:
            self._num_failures += 1
            self._total += 1
            # Of failures that go on and on, the 1st, 2nd, 4th, 8th and so on are told.
            if self._total <= MAX_FAILURES or self._total & (self._total - 1) == 0:
                log.exception("drafting failed (%d of %d times)", self._num_failures, MAX_FAILURES)
            return {}
        self._num_failures = 0
        return drafted
