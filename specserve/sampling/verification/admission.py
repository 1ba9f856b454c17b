# pyright: strict
"""The seam between drafting and verification: who decides how many drafted tokens are verified.

Under the ratio test a token may be left out only for reasons that do not know it. The signature
says so: an allocator receives no tokens, no distributions, no logits and no noise.
"""

from collections.abc import Sequence
from typing import Protocol


class Allocator(Protocol):
    """Distributes places of the next target forward among rows."""

    def allocate(self, survivals: Sequence[Sequence[float]], capacity: int) -> list[int]:
        """verify_len of every row.

        `survivals[r][k]` is the estimated probability that tokens 0..k of row r all stand, each
        confidence computed before its token was drawn, so that entry k knows tokens before k only.
        `capacity` counts drafted tokens (anchors excluded) and was chosen without regard to these
        rows' tokens. Places go by survival descending, then position, then row: a position must
        never outrank an earlier one of its row, or the later token would admit the earlier.
        """
        ...
