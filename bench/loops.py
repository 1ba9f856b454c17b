# pyright: strict
"""Greedy text that loops: a small model soon repeats itself, and a loop is easy to draft.

So figures at temperature 0 say how many of their answers loop.
"""

from collections.abc import Iterable, Sequence

import msgspec

LOOP_TOKENS = 32  # an answer loops if at least its last so many tokens repeat a period ...
MAX_PERIOD = 16  # ... of at most so many tokens ...
MIN_REPEATS = 3  # ... at least so many times
DEFINITION = (
    f"An answer loops if its last {LOOP_TOKENS} tokens or more are a period of at most "
    f"{MAX_PERIOD} tokens, {MIN_REPEATS} times or more: that is easy to draft"
)


class LoopCount(msgspec.Struct, frozen=True, kw_only=True):
    """Of `num_answers` greedy answers."""

    num_looping: int
    num_answers: int

    def __str__(self) -> str:
        return f"{self.num_looping} of {self.num_answers} greedy answers loop"


def loops(token_ids: Sequence[int]) -> bool:
    """Whether an answer ends in a loop, as `DEFINITION` has it."""
    return any(
        _repeats(token_ids, period, max(LOOP_TOKENS, MIN_REPEATS * period))
        for period in range(1, MAX_PERIOD + 1)
    )


def _repeats(token_ids: Sequence[int], period: int, length: int) -> bool:
    if len(token_ids) < length:
        return False
    tail = token_ids[-length:]
    return all(tail[at] == tail[at - period] for at in range(period, length))


def count_loops(answers: Iterable[Sequence[int]]) -> LoopCount:
    """Of greedy answers, each once."""
    found = [loops(answer) for answer in answers]
    return LoopCount(num_looping=sum(found), num_answers=len(found))


def loops_line(count: LoopCount | None) -> str:
    """For a report."""
    return "No greedy answers were counted." if count is None else f"{count}. {DEFINITION}."
