"""Drafted tokens that a grammar forbids: what is behind the first of them need not be verified."""

from collections.abc import Sequence

from specserve.sampling.grammar import GrammarState


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
