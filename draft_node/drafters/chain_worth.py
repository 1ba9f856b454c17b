# pyright: strict
"""When a chain should end because another pass costs more than it is likely to bring.

A pass takes time in which the service would make tokens, and what it drafts takes places in the
forward. It brings one token for every block whose tokens so far all stand and whose next one
stands too. Receives confidences, known before their tokens are drawn, and never tokens.
"""

from collections.abc import Sequence

from specserve.drafting import Worth

_FIRST = 0.75  # P(a token stands | those before it do), before any was seen
_SMOOTHING = 0.02  # weight of the newest pass


class ChainWorth:
    """Of one drafter; asked after every pass of its chains."""

    def __init__(self) -> None:
        self._usual = _FIRST
        self._worth: Worth | None = None
        self._survivals: list[float] = []

    def begin(self, worth: Worth | None, num_blocks: int) -> None:
        """A draft call; without a `worth` no pass is too dear."""
        self._worth, self._survivals = worth, [1.0] * num_blocks

    @property
    def is_asked(self) -> bool:
        """Whether confidences have to be looked at, which is a wait for an accelerator."""
        return self._worth is not None

    def goes_on(self, confidences: Sequence[float], pass_s: float) -> bool:
        """After a pass, before its tokens are drawn: whether another of `pass_s` seconds pays.

        confidences: of the tokens about to be drawn, one a block.
        """
        worth = self._worth
        if worth is None:
            return True
        mean = sum(confidences) / len(confidences)
        self._usual += _SMOOTHING * (mean - self._usual)
        self._survivals = [s * c for s, c in zip(self._survivals, confidences, strict=True)]
        gain = sum(max(0.0, s * self._usual - worth.token_price) for s in self._survivals)
        return gain > worth.tokens_per_s * pass_s
