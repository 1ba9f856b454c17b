# pyright: strict
"""How much of the time until the target looks may be drafted in, so that few blocks come too late.

The target says how long its rounds usually take. The next one may be shorter, blocks have to be
scored and sent when they are drafted, and others may have had the core. All of that shows in what
became of the blocks for the outcomes that came: they were verified, or the target had looked before
they were there. Receives that alone, never tokens.
"""

_FIRST, _LEAST, _MOST = 0.85, 0.5, 1.0
# With a block in time, and with a late one: one in eleven is late then.
_UP, _DOWN = 0.004, 0.04


class DeadlineMargin:
    """Of one draft process."""

    def __init__(self) -> None:
        self.share = _FIRST  # of the time there is
        self._num_blocks = self._num_late = 0  # of the report that is being read

    def observe(self, *, was_late: bool) -> None:
        """A row's outcome had a block."""
        self._num_blocks += 1
        self._num_late += was_late

    def settle(self) -> None:
        """All rows of a report were observed: they had one round, and count as one."""
        if self._num_blocks:
            late = self._num_late / self._num_blocks
            self.share = min(_MOST, max(_LEAST, self.share + _UP * (1 - late) - _DOWN * late))
        self._num_blocks = self._num_late = 0
