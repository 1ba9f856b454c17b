# pyright: strict
"""What speculative rounds leave behind: of one row, of one turn of the node, of a whole run.

Pure records that travel as JSON, and the time in which all rows of a batch decode, as a client sees
it. Times are seconds.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one row after its first token."""

    room: int  # tokens that the row could still get before it
    num_emitted: int
    verify_len: int = 0  # 0: nothing was drafted, or nothing worth verifying
    num_accepted: int = 0


class Answer(msgspec.Struct, kw_only=True):
    """The text of one row, and the rounds that made it but for its first token."""

    token_ids: list[int] = []
    rounds: list[Round] = []


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the node's loop; `rest_s` is what is neither drafting nor the forward."""

    is_decode: bool  # every row decoded
    num_rows: int
    num_emitted: int
    turn_s: float
    draft_s: float
    forward_s: float

    @property
    def rest_s(self) -> float:
        return self.turn_s - self.draft_s - self.forward_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Some prompts continued side by side."""

    answers: list[Answer]
    turns: list[Turn]


# Tokens of one round reach the client row by row, at most so far apart, and less than half a round.
_SAME_ROUND_S = 0.002


def decode_window(arrivals_s: Sequence[Sequence[float]]) -> tuple[float, float]:
    """From the round of the last first token to that of the first last one; both are whole.

    `arrivals_s`: of every row, in order. A window that ended with one row's token would have the
    time of that round, but of its tokens only those that came before.
    """
    start_s = max(row[0] for row in arrivals_s)
    end_s = max(start_s, min(row[-1] for row in arrivals_s))
    in_order = sorted(at for row in arrivals_s for at in row)
    apart_s = min(_SAME_ROUND_S, _round_s(arrivals_s) / 2)
    return _end_of_round(start_s, in_order, apart_s), _end_of_round(end_s, in_order, apart_s)


def _round_s(arrivals_s: Sequence[Sequence[float]]) -> float:
    """Between two rounds of one row; infinite where none has two."""
    gaps_s = [b - a for row in arrivals_s for a, b in itertools.pairwise(sorted(set(row)))]
    return statistics.median(gaps_s) if gaps_s else math.inf


def _end_of_round(at_s: float, in_order: Sequence[float], apart_s: float) -> float:
    for arrival_s in in_order:
        if at_s <= arrival_s <= at_s + apart_s:
            at_s = arrival_s
    return at_s
