# pyright: strict
"""What a row does in a round without a pushed block: nothing, its own text, a draft here, or wait.

SSD's Theorem 17 compares two fall-backs at one load by a model of the round. What a fall-back is
worth is more than its own round, though: the drafts have as long as a round takes, know more of
what they drafted themselves, and share memory and cores with what is drafted here, so how many rows
miss, and what a hit takes, depend on what is done about misses. So whole runs of rounds are
measured, hits and misses alike, tokens a second, as `auto` does with regimes and by the same rules
(`target_node.regime_chooser`): one run, one fall-back; apart for each load; what may well be faster
is tried, at a bounded loss. Without a draft process there is nobody to wait for: another load.

`auto` decides itself, since what async is worth depends on what is done about misses: it tells this
policy before each round, which then measures nothing.

Nobody waits again for a draft that has left a wait unanswered, before something came from it or a
second has passed: where nobody waits, it may have nothing to say.

Receives counts and times, never tokens.
"""

import enum
import time
from collections.abc import Collection
from dataclasses import dataclass

from target_node.regime_chooser import RUN, RegimeChooser
from target_node.regime_speeds import Load


class Miss(enum.StrEnum):
    """What to do with a row that has no block. What was never measured is tried in this order."""

    DRAFT_HERE = "draft_here"  # by the drafter on the target's device
    NGRAM = "ngram"  # look in its own text
    DRAFT_NOW = "draft_now"  # by the draft process; the target waits if no row has a block
    SKIP = "skip"


_SILENCE_S = 1.0  # after a wait in vain


@dataclass
class _Run:
    """Rounds that have one fall-back."""

    load: Load | None
    can_wait: bool
    miss: Miss
    left: int
    age: int = 0  # rounds that it has had in a row


class MissPolicy:
    """Chooses by measured speeds, or always the same where told so."""

    def __init__(
        self,
        *,
        fixed: Miss | None = None,
        kinds: Collection[Miss] = (Miss.NGRAM,),
        max_wait_s: float = 0.05,
    ) -> None:
        """`kinds`: what there is besides SKIP and DRAFT_NOW; `max_wait_s` bounds every wait."""
        self.max_wait_s = max_wait_s
        self._fixed = fixed  # or what was told last
        alone = {*kinds, Miss.SKIP}
        self._choosers = {
            can_wait: RegimeChooser([m for m in Miss if m in alone or m is waits])
            for can_wait, waits in ((False, None), (True, Miss.DRAFT_NOW))
        }
        self._run = _Run(None, can_wait=False, miss=Miss.SKIP, left=0)
        self._silent_until_s = 0.0  # whoever was waited for last
        self._is_held = False  # whether this round's fall-back is not that of the run

    @property
    def is_silent(self) -> bool:
        """Whether nobody is to be waited for now."""
        return time.monotonic() < self._silent_until_s

    def tell(self, miss: Miss) -> None:
        """From now on this is done about misses, where it can be, whatever was told before."""
        self._fixed = miss

    def choose(
        self, load: Load, *, can_wait: bool, is_mixed: bool = False, follows: bool = True
    ) -> Miss:
        """For all misses of the round that begins.

        `can_wait`: there is a draft process for every row; `is_mixed`: the round reads prompts
        besides, so it says nothing and nothing is tried; `follows`: upon a round of these.
        """
        if self._fixed is not None:
            may = self._fixed is not Miss.DRAFT_NOW or (can_wait and not self.is_silent)
            return self._fixed if may else Miss.SKIP
        run, chooser = self._run, self._choosers[can_wait]
        if (load, can_wait) != (run.load, run.can_wait) or run.left <= 0:
            run = self._next_run(load, can_wait=can_wait, is_mixed=is_mixed)
        elif not follows:
            run.age = 0
        run.left -= 1
        self._is_held = self.is_silent and run.miss is Miss.DRAFT_NOW
        return Miss(chooser.best(load, but=(run.miss,))) if self._is_held else run.miss

    def _next_run(self, load: Load, *, can_wait: bool, is_mixed: bool) -> _Run:
        chooser, before = self._choosers[can_wait], self._run
        miss, left = (chooser.preferred(load), RUN) if is_mixed else chooser.next_run(load)
        goes_on = before.can_wait == can_wait and before.miss == miss
        self._run = _Run(load, can_wait, Miss(miss), left, before.age if goes_on else 0)
        return self._run

    def observe(self, num_tokens: int, seconds: float) -> None:
        """The round that `choose` began, if it read no prompts: what its rows made, and how long
        it took, waits and drafts included."""
        run = self._run
        if self._fixed is not None or run.load is None or self._is_held:
            return
        age, run.age = run.age, run.age + 1
        self._choosers[run.can_wait].observe(run.load, run.miss, num_tokens, seconds, age=age)

    def waited(self, *, in_vain: bool) -> None:
        """A wait is over; `in_vain`: nothing has come at all. Then the run is, too."""
        self._silent_until_s = time.monotonic() + _SILENCE_S if in_vain else 0.0
        if in_vain:
            self._run.left = 0

    def heard(self) -> None:
        """Something came from a draft process."""
        self._silent_until_s = 0.0
