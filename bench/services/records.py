# pyright: strict
"""What one service is asked, and what the client and the kernel saw of its answer.

Times are seconds at the client's clock, from the moment the batch was handed over.
"""

from collections.abc import Sequence

import msgspec

from bench.processes import Usage
from bench.rounds import decode_window
from specserve.client import Prompt
from specserve.types import Grammar


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that one service continues side by side, each by `num_tokens` tokens.

    Exactly so many with `ignore_eos`, else at most.
    """

    prompts: Sequence[Prompt]
    num_tokens: int
    temperature: float
    seeds: list[int] | None  # None: not seeded, so drafts are verified by the service's own method
    sampling: dict[str, float] = {}  # fields besides the temperature
    ignore_eos: bool = True
    grammar: Grammar | None = None  # of every answer


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one round brought to one row; the first one of a row is that of its prompt."""

    at_s: float
    num_tokens: int
    is_speculative: bool  # drafted tokens were verified
    hit: bool | None = None  # a block had been prepared; None: nobody looked for one


class RowTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One row's answer."""

    deltas: list[Delta]
    token_ids: list[int]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One job's answer. `usage` covers the time in which all rows decode.

    `counters`: by how much the service's own counters rose, by name; those it reports.
    """

    rows: list[RowTrace]
    usage: dict[str, Usage]  # by role of the process
    counters: dict[str, float]
    foreign_share: float  # of a core, used meanwhile by processes that are none of ours

    @property
    def window_s(self) -> tuple[float, float]:
        """While all rows decode."""
        return decode_window([[delta.at_s for delta in row.deltas] for row in self.rows])

    @property
    def decode_s(self) -> float:
        start_s, end_s = self.window_s
        return end_s - start_s

    @property
    def deltas(self) -> list[Delta]:
        """All rows' rounds inside of the window."""
        start_s, end_s = self.window_s
        return [d for row in self.rows for d in row.deltas if start_s < d.at_s <= end_s]

    @property
    def num_rounds(self) -> int:
        """After every row's first token, to the end; what `usage` covers."""
        start_s, _ = self.window_s
        return max(sum(d.at_s > start_s for d in row.deltas) for row in self.rows)

    @property
    def texts(self) -> list[list[int]]:
        return [row.token_ids for row in self.rows]
