# pyright: strict
"""Rounds that draft first: for which rows, how many tokens each, and whether that pays at all.

A round takes draft and forward one after the other. Of all numbers of rows and of tokens that are
compared, the round that makes most tokens a second is the best (SSD, Theorem 7 with nothing hidden
and measured parts); rows whose drafts bring least are left out first, and where no number of them
is faster than plain decoding, nobody is drafted for (Theorem 17's saturation).

Receives probabilities, counts and times, never tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from target_node.planning.draft_pace import DraftPace

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # that are compared
_CLOSE = 0.99  # of the best speed: the shortest of such lengths drafts and verifies least
_WORTH = 0.97  # of plain decoding's speed that drafts have to reach: times are known so well

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Seconds = Callable[[Counts], NDArray[Any]]  # of forwards, by tokens


def counts_up_to(most: int) -> list[int]:
    """Numbers that are compared, `most` among them."""
    return [*(count for count in _COUNTS if count < most), most]


class DraftedRound(NamedTuple):
    """As expected. Tokens: those that it makes."""

    tokens: float
    num_rows: int  # that are drafted for
    num_drafted: int  # tokens of each block
    draft_s: float
    verify_s: float

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class ExpectedDrafts(NamedTuple):
    """Of one round, as far as it is known before it drafts."""

    num_rows: int  # of the forward, with those that are not drafted for
    num_tokens: int  # of the forward without drafted ones: anchors, prompts
    standing: Floats  # [N, L]: tokens of row n's block that usually stand, of its first 1 .. L
    covered: Floats  # [N]: P(row n has a block)
    limits: Counts  # [N]: tokens of row n's block that may be verified

    @staticmethod
    def alike(num_rows: int, survivals: Sequence[float], coverage: float) -> "ExpectedDrafts":
        """As many, all of one kind."""
        standing = np.tile(np.cumsum(survivals), (num_rows, 1))
        limits = np.full(num_rows, len(survivals), dtype=np.int64)
        return ExpectedDrafts(num_rows, num_rows, standing, np.full(num_rows, coverage), limits)

    def by_worth(self, length: int) -> list[int]:
        """Places of the rows, those first whose first `length` tokens bring most."""
        return np.argsort(-self.standing[:, length - 1] * self.covered, kind="stable").tolist()

    def ordered(self, order: Sequence[int]) -> "ExpectedDrafts":
        """The rows at these places."""
        places = np.array(order, dtype=np.int64)
        return self._replace(
            standing=self.standing[places],
            covered=self.covered[places],
            limits=self.limits[places],
        )

    def best(
        self, drafts: DraftPace, seconds: Seconds, *, counts: Sequence[int] | None = None
    ) -> DraftedRound:
        """Of all numbers of tokens, and of the first rows; `counts`: numbers of those.

        Of what is drafted token by token no more is drafted than is verified.
        """
        num_drafted, longest = self.standing.shape
        counts = counts_up_to(num_drafted) if counts is None else counts
        lengths: Counts = np.arange(1, longest + 1, dtype=np.int64)
        drawn: Counts = lengths if drafts.go_by_token else np.full_like(lengths, longest)
        rows = np.array(counts) - 1
        brought = np.cumsum(self.covered[:, None] * self.standing, axis=0)[rows]
        of_rows = self.covered[:, None] * np.minimum(self.limits[:, None], lengths)
        verified = np.cumsum(of_rows, axis=0)[rows]
        one_s, two_s = (np.array([drafts.seconds(n, k) for n in counts]) for k in (1, 2))
        entering_s = np.array([drafts.entering_s(n) for n in counts])
        draft_s = (entering_s + one_s)[:, None] + (two_s - one_s)[:, None] * (drawn - 1)
        in_all = self.num_tokens + np.ceil(verified).astype(np.int64)
        verify_s = seconds(in_all.ravel()).reshape(in_all.shape)
        tokens = self.num_rows + brought
        speeds = tokens / (draft_s + verify_s)
        place = int(np.argmax(speeds.max(axis=1)))
        of_place = speeds[place]
        length = int(np.argmax(of_place >= _CLOSE * of_place.max()))
        return DraftedRound(
            tokens=float(tokens[place, length]),
            num_rows=counts[place],
            num_drafted=int(drawn[length]),
            draft_s=float(draft_s[place, length]),
            verify_s=float(verify_s[place, length]),
        )

    def pays(self, best: DraftedRound, seconds: Seconds) -> bool:
        """Whether it is about as fast as plain decoding at least."""
        plain_s = float(seconds(np.array([self.num_tokens]))[0])
        return best.speed >= _WORTH * self.num_rows / plain_s
