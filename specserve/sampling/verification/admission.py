# pyright: strict
"""The seam between drafting and verification: who decides how many drafted tokens are verified.

Under the ratio test a token may be left out only for reasons that do not know it. The signature
says so: an allocator receives no tokens, no distributions, no logits and no noise, and what it
knows of times and of acceptance was written down before any token of these blocks was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Seconds = NDArray[np.float64]


class StepCosts(Protocol):
    """What a forward takes, as it was known when the snapshot was taken."""

    def seconds(self, num_tokens: Counts) -> Seconds:
        """Of forwards of so many tokens each, anchors and prompt tokens included."""
        ...


class FreeSteps:
    """`StepCosts` of who has measured nothing yet: every forward takes the same."""

    def seconds(self, num_tokens: Counts) -> Seconds:
        return np.ones(len(num_tokens))


_FREE = FreeSteps()


@dataclass(frozen=True, slots=True)
class PlanningSnapshot:
    """What planning may read in a round, taken before any token of its blocks was drawn.

    Synchronous: before the round's drafting. Asynchronous: before the verification of the round
    before it begins, since the round's blocks are drawn meanwhile (DSpark, section 5.2).
    """

    token_price: float = 0.0  # tokens that the time of one more drafted token would bring
    costs: StepCosts = _FREE


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What an allocator knows of a round besides its survivals."""

    snapshot: PlanningSnapshot = field(default_factory=PlanningSnapshot)
    num_tokens: int = 0  # of the forward without drafted ones: anchors, prompts
    # By row: survivals of its block two rounds before, or the prior's where it had none then.
    before: Sequence[Sequence[float]] = ()
    by_ratio: Sequence[bool] = ()  # by row: verified by the ratio test
    # By row, at least 1: how much its drafted tokens count, as of the snapshot. Empty: all once.
    weights: Sequence[float] = ()
    # Rows of the forward that make a token whatever is verified; 0: those of the survivals alone.
    num_rows: int = 0


NOTHING = RoundFacts()


class Allocator(Protocol):
    """Distributes places of the next target forward among rows."""

    @property
    def compares_rows(self) -> bool:
        """Whether what one row gets may depend on others even where there is room for all.

        Then no chain may end by what was drafted: all end together, and a token that ended its
        neighbours' would take their places.
        """
        ...

    def allocate(
        self, survivals: Sequence[Sequence[float]], capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        """verify_len of every row.

        `survivals[r][k]` is the estimated probability that tokens 0..k of row r all stand, each
        confidence computed before its token was drawn, so that entry k knows tokens before k only.
        `capacity` counts drafted tokens (anchors excluded) and was chosen without regard to these
        rows' tokens. Places go by survival (times the row's weight) descending, then position,
        then row: a position must never outrank an earlier one of its row, or the later token
        would admit the earlier.
        """
        ...
