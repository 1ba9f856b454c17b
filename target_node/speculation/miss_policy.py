# pyright: strict
"""What a row does in a round without a pushed block: nothing, its own text, a draft here, or wait.

SSD's Theorem 17 compares two fall-backs at one load by a model of the round. What a fall-back is
worth is more than its own round, though: the drafts have as long as a round takes, know more of
what they drafted themselves, and share memory and cores with what is drafted here, so how many rows
miss, and what a hit takes, depend on what is done about misses. So whole runs of rounds are
measured, hits and misses alike, tokens a second: each fall-back is a mode of its own, and
`target_node.speculation.auto` says before each round which. Here is what of that can be done.

Nobody waits again for a draft that has left a wait unanswered, before something came from it or a
second has passed: where nobody waits, it may have nothing to say.
"""

import enum
import time


class Miss(enum.StrEnum):
    """What to do with a row that has no block."""

    LOCAL_DRAFT = "local_draft"  # by the drafter on the target's device
    NGRAM = "ngram"  # look in its own text
    DRAFT_NOW = "draft_now"  # by the draft process; the target waits if no row has a block
    SKIP = "skip"


_SILENCE_S = 1.0  # after a wait in vain
_MAX_WAIT_S = 0.05  # for draft processes that are attached; a round may not look like a hang


class MissPolicy:
    """What is done about misses: as told, or nothing where that cannot be done."""

    def __init__(self, miss: Miss = Miss.SKIP, *, max_wait_s: float = _MAX_WAIT_S) -> None:
        """`miss`: before anything else is told; `max_wait_s` bounds every wait."""
        self.max_wait_s = max_wait_s
        self._miss = miss
        self._silent_until_s = 0.0  # whoever was waited for last

    @property
    def is_silent(self) -> bool:
        """Whether nobody is to be waited for now."""
        return time.monotonic() < self._silent_until_s

    def tell(self, miss: Miss) -> None:
        """From now on this is done about misses, where it can be."""
        self._miss = miss

    def choose(self) -> Miss:
        """For all misses of a round."""
        is_in_vain = self._miss is Miss.DRAFT_NOW and self.is_silent
        return Miss.SKIP if is_in_vain else self._miss

    def waited(self, *, in_vain: bool) -> None:
        """A wait is over; `in_vain`: nothing has come at all."""
        self._silent_until_s = time.monotonic() + _SILENCE_S if in_vain else 0.0

    def heard(self) -> None:
        """Something came from a draft process."""
        self._silent_until_s = 0.0
