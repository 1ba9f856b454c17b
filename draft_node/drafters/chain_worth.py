# pyright: strict
"""When a chain should end because another pass costs more than it is likely to bring.

A pass takes time in which the service would make tokens, and what it drafts takes places in the
forward. It brings one token for every block whose tokens so far all stand and whose next one
stands too. Receives confidences, known before their tokens are drawn, and never tokens.
"""

from collections.abc import Sequence

from specserve.drafting import DraftBatch, Worth

_FIRST = 0.75  # P(a token stands | those before it do), before any was seen
_SMOOTHING = 0.02  # weight of the newest pass


class ChainWorth:
    """Of one drafter; asked after every pass of its chains."""

    def __init__(self) -> None:
        self._usual = _FIRST
        self._worth: Worth | None = None
        self._survivals: list[float] = []
        self._chances: Sequence[float] = []  # of blocks to be asked for
        self._num_left = 0  # passes that are made whatever they are worth

    def begin(self, batch: DraftBatch) -> None:
        """A draft call; without a worth no pass is too dear."""
        self._worth, self._survivals = batch.worth, [1.0] * len(batch.rows)
        self._chances = [1.0] * len(batch.rows) if batch.chances is None else batch.chances
        self._num_left = batch.least - 1

    @property
    def is_looking(self) -> bool:
        """Whether confidences are wanted, which is a wait for an accelerator."""
        return self._worth is not None and self._worth.may_look

    def goes_on(self, confidences: Sequence[float], pass_s: float) -> bool:
        """After a pass, before its tokens are drawn: whether another of `pass_s` seconds pays.

        confidences: of the tokens about to be drawn, one a block; ignored if nobody `is_looking`.
        """
        worth = self._worth
        if worth is None:
            return True
        # What is no probability must not stay in the means of all that follows.
        known = [c if 0.0 <= c <= 1.0 else 0.0 for c in confidences]
        if worth.may_look:
            self._usual += _SMOOTHING * (sum(known) / len(known) - self._usual)
        else:
            known = [self._usual] * len(self._survivals)
        self._survivals = [s * c for s, c in zip(self._survivals, known, strict=True)]
        self._num_left -= 1
        gain = sum(
            chance * max(0.0, s * self._usual - worth.token_price)
            for chance, s in zip(self._chances, self._survivals, strict=True)
        )
        return self._num_left >= 0 or gain > worth.tokens_per_s * pass_s
