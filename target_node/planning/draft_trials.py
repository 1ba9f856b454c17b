# pyright: strict
"""When what does not pay is drafted for nevertheless: at first, and now and then.

Whether drafts pay follows from what they take and how often they stand, which only rounds with
drafts can tell: the first of all read contexts besides, texts change, and so do machines. So a load
begins with some rounds of them, and goes without where those speak against it. After a while it has
as many again, whose figures outweigh all before, and goes without twice as long if in vain.

Counts rounds, and knows no tokens.
"""

_ROUNDS = 16  # of a trial
_FIRST_PAUSE, _LONGEST_PAUSE = 256, 8192  # rounds
_MOST_CATCHING_UP = 64  # rounds of a trial in which contexts may catch up first


class DraftTrials:
    """Of one load."""

    def __init__(self) -> None:
        self._left = _ROUNDS
        self._paused = 0
        self._pause = _FIRST_PAUSE
        self._is_trial = True  # the latest round
        self._may_repeat = _MOST_CATCHING_UP

    @property
    def begins(self) -> bool:
        """Whether the round that was asked about is the first of a trial after a pause."""
        return self._left == _ROUNDS - 1 and self._pause > _FIRST_PAUSE

    def drafts(self, *, pays: bool) -> bool:
        """Whether the round that begins has drafts."""
        self._is_trial = self._left > 0
        if self._is_trial:
            self._left -= 1
            return True
        if pays:
            self._pause, self._paused = _FIRST_PAUSE, 0
            return True
        self._paused += 1
        if self._paused <= self._pause:
            return False
        self._is_trial, self._may_repeat = True, _MOST_CATCHING_UP
        self._paused, self._left = 0, _ROUNDS - 1
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True

    def repeat(self) -> None:
        """The latest round read contexts instead of drafting: of a trial it does not count."""
        if self._is_trial and self._may_repeat:
            self._may_repeat -= 1
            self._left += 1
