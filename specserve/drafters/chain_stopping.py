"""When chains end: their time is up, or another pass costs more than it is likely to bring.

A pass takes time in which the service would make tokens, and what it drafts takes places in the
forward. It brings one token for every block whose tokens so far all stand and whose next one
stands too. Receives clocks and confidences, known before their tokens are drawn, and never tokens.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specserve.drafters.protocol import DraftBatch, StoppingThreshold
from specserve.drafters.step_timer import StepTimer

_FIRST = 0.75  # P(a token stands | those before it do), before any was seen
_SMOOTHING = 0.02  # weight of the newest pass


class ChainStopping:
    """Of one drafter; asked after every pass of its chains."""

    def __init__(self) -> None:
        self._stands = _FIRST  # P(a token stands | those before it do), usually
        # Of this call; without one no pass is too dear.
        self._threshold: StoppingThreshold | None = None
        self._num_left = 0  # passes that are made whatever they are worth
        self._survivals = self._chances = np.empty(0)  # [B]

    def begin(self, batch: DraftBatch) -> None:
        """A draft call."""
        num_blocks = len(batch.rows)
        self._threshold, self._num_left = batch.threshold, batch.least - 1
        self._survivals = np.ones(num_blocks)
        self._chances = np.ones(num_blocks)
        if batch.chances is not None:
            self._chances[:] = batch.chances

    @property
    def is_looking(self) -> bool:
        """Whether confidences are wanted, which is a wait for an accelerator."""
        return self._threshold is not None and self._threshold.may_look

    def goes_on(self, confidences: Sequence[float], pass_s: float) -> bool:
        """After a pass, before its tokens are drawn: whether another of `pass_s` seconds pays.

        confidences: of the tokens about to be drawn, one a block; ignored if nobody `is_looking`.
        """
        if self._threshold is None:
            return True
        if self._threshold.may_look:
            known = np.array(confidences, dtype=np.float64)
            # What is no probability must not stay in the means of all that follows.
            known[~((known >= 0) & (known <= 1))] = 0.0
            self._survivals *= known
            self._stands += _SMOOTHING * (known.mean() - self._stands)
        else:
            self._survivals *= self._stands
        self._num_left -= 1
        gains = np.maximum(0.0, self._survivals * self._stands - self._threshold.token_price)
        gain = float((self._chances * gains).sum())
        return self._num_left >= 0 or gain > self._threshold.tokens_per_s * pass_s


class ChainEnding:
    """Of one drafter: `begin`, `goes_on` after every pass, `timer.end`."""

    def __init__(self) -> None:
        self.timer = StepTimer()
        self.stopping = ChainStopping()
        self._has_confidences = False

    def begin(self, batch: DraftBatch, *, has_confidences: bool) -> None:
        """A draft call; without confidences nobody knows what a pass is worth."""
        self._has_confidences = has_confidences
        self.timer.begin(batch.due_s, len(batch.rows))
        self.stopping.begin(batch)

    def goes_on(self, last_confidences: Callable[[], Sequence[float]]) -> bool:
        """After a pass, before its tokens are drawn: whether another is in time and pays.

        `last_confidences`: of the tokens about to be drawn, asked for where somebody looks.
        """
        if not self.timer.goes_on():
            return False
        if not self._has_confidences:
            return True
        known = last_confidences() if self.stopping.is_looking else ()
        return self.stopping.goes_on(known, self.timer.further_s)
