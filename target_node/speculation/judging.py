# pyright: strict
"""How rows are judged, as far as it makes drafts another matter: what is measured is kept apart."""

from collections import Counter
from collections.abc import Iterable

from specserve.sampling.verification.rule import VerificationRule
from target_node.sequence import Sequence

GREEDY = "greedy"


def judging_of(sequence: Sequence, rule: VerificationRule) -> str:
    """The rules are one at temperature 0, where drafts are another matter than at 1."""
    return GREEDY if sequence.request.sampling.temperature == 0 else rule


def prevailing(judgings: Iterable[str]) -> str:
    """That of most rows."""
    counts = Counter(judgings)
    return max(counts, key=lambda judging: (counts[judging], judging))
