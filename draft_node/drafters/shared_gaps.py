"""Gaps that blocks have in common, computed once a row instead of once a block.

Outcomes of a round differ in how many of the tokens in flight they accept, so their gaps are
beginnings of one. Its tokens see the context and each other in order, and no block: whatever stands
behind them, their keys and values are the same. So they stand behind the row for as long as a pass
takes, and each block behind as many of them as it has.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from draft_node.branch_attention import Entering
from draft_node.context import ContextRows
from specserve.errors import Exhausted


def longest_gaps(
    contexts: ContextRows,
    rows: Sequence[int],
    lengths: Sequence[int],
    gap_ids: Sequence[Sequence[int]],
) -> Entering | None:
    """The longest gap of each row of blocks, behind all of the row, of which others are beginnings.

    None if they are not, or do not stand there, or if there are none.
    """
    longest: dict[int, Sequence[int]] = {}
    for row, length, ids in zip(rows, lengths, gap_ids, strict=True):
        if length != contexts.length(row):
            return None
        if len(ids) > len(longest.get(row, ())):
            longest[row] = ids
    for row, ids in zip(rows, gap_ids, strict=True):
        if list(ids) != list(longest.get(row, ())[: len(ids)]):
            return None
    if not longest:
        return None
    return Entering(
        rows=list(longest),
        starts=[contexts.length(row) for row in longest],
        counts=[len(ids) for ids in longest.values()],
        token_ids=[token for ids in longest.values() for token in ids],
    )


@contextmanager
def standing(contexts: ContextRows, gaps: Entering) -> Generator[bool]:
    """While inside, rows have places for the tokens of their gaps; False without pages for that."""
    try:
        contexts.reserve(gaps.rows, gaps.starts, gaps.counts)
    except Exhausted:
        yield False
        return
    try:
        yield True
    finally:
        for row, start in zip(gaps.rows, gaps.starts, strict=True):
            contexts.truncate(row, start)
