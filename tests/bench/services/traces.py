"""Made-up answers of services, for tests of what benches make of them."""

from collections.abc import Sequence

from bench.processes import Usage
from bench.services.records import Delta, RowTrace, Trace


def trace(
    lengths: list[int],
    *,
    round_s: float,
    hits: Sequence[bool | None] = (),
    is_speculative: bool = True,
    counters: dict[str, float] | None = None,
    foreign_share: float = 0.0,
) -> Trace:
    """One row: a token of the prompt's round, then rounds of `lengths` tokens, evenly spaced."""
    outcomes = hits or [None] * len(lengths)
    deltas = [Delta(1.0, 1, False, None)]
    for number, (length, hit) in enumerate(zip(lengths, outcomes, strict=True), start=1):
        deltas.append(Delta(1.0 + number * round_s, length, is_speculative and length > 1, hit))
    usage = {"target": Usage(ran_s=round_s * len(lengths) / 2)}
    row = RowTrace(deltas=deltas, token_ids=list(range(1 + sum(lengths))))
    return Trace(rows=[row], usage=usage, counters=counters or {}, foreign_share=foreign_share)
