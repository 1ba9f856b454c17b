"""When the chains of a draft call end: when their time is up, or where another pass costs more.

Knows clocks and confidences, never tokens.
"""

from collections.abc import Callable, Sequence

from specserve.drafters.chain_stopping import ChainStopping
from specserve.drafters.protocol import DraftBatch
from specserve.drafters.step_timer import StepTimer


class ChainEnding:
    """Of one drafter: `begin`, `goes_on` after every pass, `clock.end`."""

    def __init__(self) -> None:
        self.clock = StepTimer()
        self.threshold = ChainStopping()
        self._has_confidences = False

    def begin(self, batch: DraftBatch, *, has_confidences: bool) -> None:
        """A draft call; without confidences nobody knows what a pass is worth."""
        self._has_confidences = has_confidences
        self.clock.begin(batch.due_s, len(batch.rows))
        self.threshold.begin(batch)

    def goes_on(self, last_confidences: Callable[[], Sequence[float]]) -> bool:
        """After a pass, before its tokens are drawn: whether another is in time and pays.

        `last_confidences`: of the tokens about to be drawn, asked for where somebody looks.
        """
        if not self.clock.goes_on():
            return False
        if not self._has_confidences:
            return True
        known = last_confidences() if self.threshold.is_looking else ()
        return self.threshold.goes_on(known, self.clock.further_s)
