# pyright: strict
"""What drafts take: as the start timed them, at the pace of the latest ones.

A start times few sizes, and others may have had the machine; rounds have sizes of their own, and
what enters contexts besides. So the times of the start say how sizes compare, and what drafts took
since then how fast the drafter is, apart for every number of blocks in powers of two: the median of
the latest, since others have the core now and then.

Receives counts and times, never tokens.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

from specserve.drafters.draft_times import DraftTimes

_TIMED = 2  # drafts that the start counts for
_KEPT = 15  # latest drafts
_DOUBTED = 1  # drafts that all before count for, once they are doubted


class DraftPace:
    """Of one drafter, wherever its blocks are used."""

    def __init__(
        self, timed: Callable[[], DraftTimes] = DraftTimes, *, counts_entering: bool = False
    ) -> None:
        """`timed`: by whoever drafts, as soon as he has.

        `counts_entering`: what is observed has the tokens in it that enter contexts first.
        """
        self._timed = timed
        self._counts_entering = counts_entering
        # By blocks, in powers of two: how many times as long as the start says drafts took, and the
        # median of that. Seconds where the start says nothing.
        self._latest: dict[int, deque[float]] = {}
        self._factors: dict[int, float] = {}
        self._begun: set[int] = set()  # of them: something was drafted since they were doubted

    @property
    def is_known(self) -> bool:
        return bool(self._timed().all or self._factors)

    @property
    def go_by_token(self) -> bool:
        """Whether longer blocks take longer."""
        return self._timed().go_by_token

    @property
    def enter_s(self) -> float:
        """Until what was verified is in a row's context; nothing where `seconds` has it."""
        return 0.0 if self._counts_entering else self._timed().enter_s

    def seconds(self, num_blocks: int, num_tokens: float) -> float:
        """Of so many blocks of so many tokens, on a line by tokens; 0 where nothing is known."""
        if not num_blocks:
            return 0.0
        return self._factor(num_blocks) * self._base(num_blocks, num_tokens)

    def observe(self, num_blocks: int, num_tokens: float, seconds: float) -> None:
        """So many blocks took so long.

        Not the first of all, nor the first after a doubt: contexts catch up in it.
        """
        bits, base = num_blocks.bit_length(), self._base(num_blocks, num_tokens)
        if bits not in self._begun:
            self._begun.add(bits)
            return
        if base <= 0:
            return
        if bits not in self._latest:
            before = [self._factor(num_blocks)] * _TIMED if self.is_known else []
            self._latest[bits] = deque(before, maxlen=_KEPT)
        self._latest[bits].append(seconds / base)
        self._factors[bits] = median(self._latest[bits])

    def doubt(self) -> None:
        """What is observed from now on outweighs all before."""
        self._begun.clear()
        for bits, factor in self._factors.items():
            self._latest[bits] = deque([factor] * _DOUBTED, maxlen=_KEPT)

    def freeze(self) -> "DraftPace":
        """As it is now: nothing that is observed later changes it."""
        timed = self._timed()
        found = DraftPace(lambda: timed, counts_entering=self._counts_entering)
        found._factors = dict(self._factors)
        return found

    def _base(self, num_blocks: int, num_tokens: float) -> float:
        """What the start says; a second where it said nothing."""
        timed = self._timed()
        if not timed.all:
            return 1.0
        entering = timed.enter_s if self._counts_entering else 0.0
        return entering + timed.seconds(num_blocks, num_tokens)

    def _factor(self, num_blocks: int) -> float:
        """That of the most similar number of blocks."""
        bits = num_blocks.bit_length()
        if bits in self._factors:
            return self._factors[bits]
        if self._factors:
            return self._factors[min(self._factors, key=lambda each: (abs(each - bits), each))]
        return 1.0 if self._timed().all else 0.0
