# pyright: strict
"""What drafts take: as the start timed them, at the pace of the latest ones.

A start times few sizes, and others may have had the machine. So the times of the start say how
sizes compare, and what drafts took since then how fast the drafter is, apart for every number of
blocks in powers of two: the median of the latest, since others have the core now and then. What
enters contexts before is told apart: a drafter that is asked now and then has much to catch up
with, and one that is asked in every round little.

Receives counts and times, never tokens.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

from specserve.drafters.draft_times import DraftTimes

_TIMED = 2  # drafts that the start counts for
_KEPT = 15  # latest drafts
_DOUBTED = 1  # drafts that all before count for, once they are doubted
MOST_ENTER = 16  # tokens of a row that enter in a round, where it is drafted for in all


class DraftPace:
    """Of one drafter, wherever its blocks are used."""

    def __init__(self, timed: Callable[[], DraftTimes] = DraftTimes) -> None:
        """`timed`: by whoever drafts, as soon as he has."""
        self._timed = timed
        # How many times as long as the start says drafts took, by blocks; seconds where the start
        # says nothing. Seconds of what entered contexts, by rows.
        self._drafts, self._entering = _Medians(), _Medians()

    @property
    def is_known(self) -> bool:
        return bool(self._timed().all) or self._drafts.is_known

    @property
    def go_by_token(self) -> bool:
        """Whether longer blocks take longer."""
        return self._timed().go_by_token

    def seconds(self, num_blocks: int, num_tokens: float) -> float:
        """Of so many blocks of so many tokens, on a line by tokens; 0 where nothing is known."""
        if not num_blocks:
            return 0.0
        usual = 1.0 if self._timed().all else 0.0
        return self._drafts.at(num_blocks, usual) * self._base(num_blocks, num_tokens)

    def entering_s(self, num_rows: int) -> float:
        """Until what was verified of so many rows is in their contexts, round by round."""
        return self._entering.at(num_rows, self._timed().enter_s) if num_rows else 0.0

    def observe(self, num_blocks: int, num_tokens: float, seconds: float) -> None:
        """So many blocks took so long, contexts apart. The first of all does not count."""
        base = self._base(num_blocks, num_tokens)
        if base > 0:
            before = [self._drafts.at(num_blocks, 1.0)] * _TIMED if self.is_known else []
            self._drafts.add(num_blocks, seconds / base, before)

    def observe_entering(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """So many tokens of so many rows entered contexts."""
        if num_tokens <= MOST_ENTER * num_rows:
            self._entering.add(num_rows, seconds, [])

    def doubt(self) -> None:
        """What is observed from now on outweighs all before."""
        self._drafts.doubt()
        self._entering.doubt()

    def forget(self) -> None:
        """Another process drafts from now on, which has timed itself."""
        self._drafts, self._entering = _Medians(), _Medians()

    def freeze(self) -> "DraftPace":
        """As it is now: nothing that is observed later changes it."""
        timed = self._timed()
        found = DraftPace(lambda: timed)
        found._drafts, found._entering = self._drafts.freeze(), self._entering.freeze()
        return found

    def _base(self, num_blocks: int, num_tokens: float) -> float:
        """What the start says; a second where it said nothing."""
        timed = self._timed()
        return timed.seconds(num_blocks, num_tokens) if timed.all else 1.0


class _Medians:
    """Of the latest values, by a number in powers of two."""

    def __init__(self) -> None:
        self._latest: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._begun: set[int] = set()  # something was added since it was doubted

    @property
    def is_known(self) -> bool:
        return bool(self._medians)

    def at(self, number: int, default: float) -> float:
        """That of the most similar number."""
        bits = number.bit_length()
        if bits in self._medians or not self._medians:
            return self._medians.get(bits, default)
        return self._medians[min(self._medians, key=lambda each: (abs(each - bits), each))]

    def add(self, number: int, value: float, before: list[float]) -> None:
        """`before`: what counts as the first values. The first one since a doubt is left out."""
        bits = number.bit_length()
        if bits not in self._begun:
            self._begun.add(bits)
            return
        latest = self._latest.setdefault(bits, deque(before, maxlen=_KEPT))
        latest.append(value)
        self._medians[bits] = median(latest)

    def doubt(self) -> None:
        self._begun.clear()
        for bits, value in self._medians.items():
            self._latest[bits] = deque([value] * _DOUBTED, maxlen=_KEPT)

    def freeze(self) -> "_Medians":
        """Only to be read."""
        found = _Medians()
        found._medians = dict(self._medians)
        return found
