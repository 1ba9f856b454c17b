"""Tokens that have a place in a context but no entries yet: pending ones, and few others.

The next pass over the model computes them along with what it is for, which costs little more than
that pass alone. Whatever needs their entries earlier takes them from here.
"""

from collections.abc import Sequence

from specserve.drafters.branch_attention import Entering


class UncomputedTokens:
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

    @property
    def most(self) -> int:
        """Tokens of the row that has most of them; a pass computes as many for each."""
        return max((len(tokens) for _, tokens in self._tokens.values()), default=0)

    @property
    def area(self) -> int:
        """What a pass computes, padding included."""
        return len(self._tokens) * self.most

    def truncate(self, row: int, length: int) -> None:
        """The row ends at `length` now."""
        if row in self._tokens:
            start, tokens = self._tokens[row]
            del tokens[max(0, length - start) :]
            if not tokens:
                del self._tokens[row]

    def all(self) -> Entering | None:
        """What a pass has to compute; None if that is nothing."""
        if not self._tokens:
            return None
        return Entering(
            rows=list(self._tokens),
            starts=[start for start, _ in self._tokens.values()],
            counts=[len(tokens) for _, tokens in self._tokens.values()],
            token_ids=[token_id for _, tokens in self._tokens.values() for token_id in tokens],
        )

    def computed(self) -> None:
        """The pass succeeded: all of them have entries now. A pass that failed is made again."""
        self._tokens.clear()
