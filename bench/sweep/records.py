# pyright: strict
"""What is kept of one turn: of every answer its times and counts, of its text a digest.

Times are seconds at the client's clock, from the beginning of the turn.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from bench.services.records import Delta
from bench.sweep.plan import Load

_DIGITS = 5  # of seconds
_DIGEST_BYTES = 8


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One request. Its *window* is the part of it in which the load was whole."""

    sent_s: float  # open loops: when it arrived
    first_s: float  # its first tokens
    last_s: float
    num_tokens: int
    num_first: int  # of these, those that the prompt's own round brought
    num_rounds: int  # after that
    num_sync: int  # of these, with tokens drafted beside the target
    num_lookups: int  # of these, in which a block of a draft process was looked up
    num_hits: int
    num_verified: int  # drafted tokens
    window_tokens: int
    window_s: float
    text: str  # digest

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens after the first ones; None where there are none."""
        num_further = self.num_tokens - self.num_first
        return (self.last_s - self.first_s) / num_further if num_further else None


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    """One arm under one load once."""

    load: Load
    temperature: float
    repeat: int
    arm: str
    answers: list[Answer]
    took_s: float  # from the first request to the last token
    counters: dict[str, float]  # by how much the service's own rose
    foreign_share: float  # of a core, used meanwhile by processes that are none of ours
    session: int  # of how many runs of the command it is
    elapsed_s: float  # of all runs, when it was finished

    @property
    def place(self) -> tuple[float, Load, int]:
        """All arms of a place were asked the same."""
        return self.temperature, self.load, self.repeat


class Streamed(msgspec.Struct, kw_only=True):
    """One request as it came, before anybody knows when the load ceased to be whole."""

    sent_s: float
    deltas: list[Delta]
    token_ids: list[int]
    num_verified: int = 0


def answers_of(streamed: Sequence[Streamed], load: Load) -> list[Answer]:
    """In the order of the requests.

    A closed loop is whole until a request ends for which no other one takes its place. Of an open
    loop every request counts whole. Of a closed loop there are as many as are in flight, or more.
    """
    end_s = max(one.deltas[-1].at_s for one in streamed)
    if load.is_closed:
        end_s = sorted(one.deltas[-1].at_s for one in streamed)[-load.in_flight]
    return [_answer(one, end_s) for one in streamed]


def _answer(one: Streamed, end_s: float) -> Answer:
    further = one.deltas[1:]
    last_s = one.deltas[-1].at_s
    return Answer(
        round(one.sent_s, _DIGITS),
        round(one.deltas[0].at_s, _DIGITS),
        round(last_s, _DIGITS),
        len(one.token_ids),
        one.deltas[0].num_tokens,
        len(further),
        sum(delta.hit is None and delta.is_speculative for delta in further),
        sum(delta.hit is not None for delta in further),
        sum(delta.hit is True for delta in further),
        one.num_verified,
        sum(delta.num_tokens for delta in one.deltas if delta.at_s <= end_s),
        round(max(0.0, min(last_s, end_s) - one.sent_s), _DIGITS),
        _digest(one.token_ids),
    )


def _digest(token_ids: Sequence[int]) -> str:
    words = ",".join(map(str, token_ids)).encode()
    return hashlib.blake2b(words, digest_size=_DIGEST_BYTES).hexdigest()
