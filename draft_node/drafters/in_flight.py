"""Tokens in flight that have a place in a context but no entries yet.

The next pass over the model computes them along with what it is for, which costs little more than
that pass alone. Whatever needs their entries earlier takes them from here.
"""

from collections.abc import Sequence

from draft_node.branch_attention import Entering


class InFlightTokens:
    """By row: where they start, and which they are."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[int, list[int]]] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._tokens

    def add(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        """Places that were just reserved at the ends of `rows`."""
        at = 0
        for row, start, count in zip(rows, starts, counts, strict=True):
            _, tokens = self._tokens.setdefault(row, (start, []))
            tokens += token_ids[at : at + count]
            at += count

    def truncate(self, row: int, length: int) -> None:
        """The row ends at `length` now."""
        if row in self._tokens:
            start, tokens = self._tokens[row]
            del tokens[max(0, length - start) :]
            if not tokens:
                del self._tokens[row]

    def take(self) -> Entering | None:
        """All of them, which are then no longer here; None if there are none."""
        if not self._tokens:
            return None
        taken = Entering(
            rows=list(self._tokens),
            starts=[start for start, _ in self._tokens.values()],
            counts=[len(tokens) for _, tokens in self._tokens.values()],
            token_ids=[token_id for _, tokens in self._tokens.values() for token_id in tokens],
        )
        self._tokens.clear()
        return taken
