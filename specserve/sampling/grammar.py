# pyright: strict
"""What a grammar tells sampling: which tokens may come next, at one place of one sample's text.

A protocol alone, so that whoever samples needs no library of grammars. A place is advanced token by
token and forked for drafted paths, as the rest of a sample's state is.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

_NO_TOKEN = -1  # as in `specserve.sampling.sampling`, which needs torch


class GrammarState(Protocol):
    """One sample's place in its grammar."""

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """End-of-sequence tokens: allowed exactly where the grammar may end."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow: the text is complete, or an end token was the last."""
        ...

    def append(self, token_id: int) -> None:
        """Advance by one token; behind one that the grammar forbids nothing is forbidden."""
        ...

    def fork(self) -> Self:
        """Goes its own way from here, until its origin is advanced."""
        ...

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these may follow, one after the other."""
        ...

    def allowed(self, held_back: Sequence[int]) -> NDArray[np.uint8] | None:
        """Bits of the tokens that may come next, lowest first, eight to each of uint8 [W].

        Those `held_back` are not among them, as long as there are others. No bit is set where the
        grammar has become too much to compute. None: anything may come.
        """
        ...


def completing(state: GrammarState, token_ids: Iterable[int]) -> int | None:
    """How many of these tokens complete the text; None: it may go on behind all of them."""
    place = state.fork()
    for count, token_id in enumerate(token_ids, start=1):
        if token_id == _NO_TOKEN:
            return None
        place.append(token_id)
        if place.is_over:
            return count
    return None


def worth_verifying(
    grammar: GrammarState | None, token_ids: Sequence[int], *, by_ratio: bool
) -> int:
    """How many of these drafted tokens, all of which have places, are worth a row of logits.

    Places are given away before: a token that decided about its place by what it is would change
    the distribution. For the same reason the first that is forbidden keeps its place under the
    ratio test, which refuses it and draws what follows from the residual.
    """
    if grammar is None or not token_ids:
        return len(token_ids)
    return min(len(token_ids), grammar.num_allowed(token_ids) + (1 if by_ratio else 0))
