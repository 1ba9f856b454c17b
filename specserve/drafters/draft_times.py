# pyright: strict
"""How long a drafter takes for so many blocks of so many tokens, as its process's start measured.

Both sides start so: the target's process times the drafter beside it, a draft process times its own
and says so as it attaches. What a mode will do is foretold by it before the first request.
"""

import bisect
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from specserve.settings.draft_files import DraftFile, DraftRecord
from specserve.types import DraftTime

_TAKES = 2  # of each size, after one that is not counted; the shortest counts
_MOST_S = 0.6  # of all sizes: larger ones of a slow drafter are as many times longer
_ALIKE = 2.0  # times as long or short as expected a draft may take: nobody has the machine alone
_TINY_S = 1e-6
_CHAIN = 5  # tokens of the longer of two chains, whose difference tells what a token takes

TimedDraft = Callable[[int, int | None], object]  # blocks, tokens of a chain


class DraftTimes:
    """Of one drafter."""

    def __init__(self, times: Iterable[DraftTime] = (), enter_s: float = 0.0) -> None:
        """`enter_s`: until what was verified is in a row's context."""
        self.enter_s = enter_s
        self.all = sorted(times, key=lambda each: each.num_blocks)

    @property
    def go_by_token(self) -> bool:
        """Whether longer blocks take longer."""
        return any(each.token_s > 0 for each in self.all)

    def seconds(self, num_blocks: int, num_tokens: float) -> float:
        """Between two sizes on the line through them; beyond the last as many times as long.

        Nothing where nobody measured anything.
        """
        if not self.all or not num_blocks:
            return 0.0
        place = bisect.bisect_left(self.all, num_blocks, key=lambda each: each.num_blocks)
        if place == len(self.all):
            return num_blocks / self.all[-1].num_blocks * self.all[-1].seconds(num_tokens)
        high = self.all[place]
        if not place or high.num_blocks == num_blocks:
            return high.seconds(num_tokens)
        low = self.all[place - 1]
        share = (num_blocks - low.num_blocks) / (high.num_blocks - low.num_blocks)
        return (1 - share) * low.seconds(num_tokens) + share * high.seconds(num_tokens)


class Measured(Protocol):
    """Says what drafts take; quickly where it is told what they took before."""

    def __call__(self, *, known: DraftTimes | None) -> DraftTimes: ...


def recall(file: DraftFile, measured: Measured) -> DraftTimes:
    """What an earlier process has measured, at the pace of this one, or what this one does."""
    record = file.read()
    known = None if record is None else DraftTimes(record.times, record.enter_s)
    found = measured(known=known)
    is_of_them = known is not None and _are_alike(known, found)
    if not is_of_them and found.all:
        file.write(DraftRecord(made_for=file.made_for, times=found.all, enter_s=found.enter_s))
    return found


def _are_alike(known: DraftTimes, found: DraftTimes) -> bool:
    """Whether one is the other at another pace."""
    if len(known.all) != len(found.all) or not known.all:
        return False
    ratios = [
        a.seconds(1) / max(b.seconds(1), _TINY_S) for a, b in zip(known.all, found.all, strict=True)
    ]
    return max(ratios) <= _ALIKE * min(ratios)


def at_pace(
    known: DraftTimes, draft: TimedDraft, sizes: Sequence[int], *, gamma: int = _CHAIN
) -> DraftTimes | None:
    """What an earlier process has measured, as long as one size of it takes now.

    None where the largest size speaks against it, or it is of other sizes: a start that was
    disturbed is not believed for ever.
    """
    if [each.num_blocks for each in known.all] != list(sizes)[: len(known.all)]:
        return None
    first, last = known.all[0], known.all[-1]
    num_tokens = min(_CHAIN, gamma) if known.go_by_token else None
    before_s = max(first.seconds(num_tokens or 0), _TINY_S)
    pace = shortest(partial(draft, first.num_blocks, num_tokens)) / before_s
    began_s = time.perf_counter()
    draft(last.num_blocks, num_tokens)
    seconds, expected_s = time.perf_counter() - began_s, pace * last.seconds(num_tokens or 0)
    if not expected_s <= _ALIKE * seconds <= _ALIKE**2 * expected_s:
        return None
    for between in known.all[1:-1]:  # first calls of a size take longer, in nobody's round
        draft(between.num_blocks, num_tokens)
    times = [DraftTime(t.num_blocks, pace * t.fixed_s, pace * t.token_s) for t in known.all]
    return DraftTimes(times, pace * known.enter_s)


def measure(
    draft: TimedDraft, sizes: Sequence[int], *, is_chain: bool, gamma: int = _CHAIN
) -> list[DraftTime]:
    """`draft(blocks, tokens)` returns once they are drafted; `sizes` ascend.

    `is_chain`: it drafts token by token, `gamma` at most. What does not fit in the time is left
    out.
    """
    longest = min(_CHAIN, gamma)
    found: list[DraftTime] = []
    ends_s = time.perf_counter() + _MOST_S
    for size in sizes:
        if found and time.perf_counter() > ends_s:
            break
        if not is_chain:
            found.append(DraftTime(size, shortest(partial(draft, size, None)), 0.0))
            continue
        one_s, more_s = (shortest(partial(draft, size, count)) for count in (1, longest))
        token_s = max(0.0, more_s - one_s) / max(1, longest - 1)
        found.append(DraftTime(size, max(0.0, one_s - token_s), token_s))
    return found


def shortest(call: Callable[[], object]) -> float:
    """Seconds, of some calls after one that is not counted."""
    call()
    taken: list[float] = []
    for _ in range(_TAKES):
        began_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began_s)
    return min(taken)
