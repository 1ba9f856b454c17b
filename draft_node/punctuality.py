# pyright: strict
"""How much of the time until the target looks may be drafted in: as much as keeps lateness rare.

The target says how long its latest rounds took. The next one may be shorter, blocks have to be
scored and sent when they are drafted, and others may have had the core: all that is learned from
what became of blocks. A late block takes back as much as some twenty in time have added, so one in
twenty comes late. Receives that one fact of rounds that are over, never tokens.
"""

_FIRST, _LEAST, _MOST = 0.85, 0.6, 1.0
_GAIN = 0.0015  # with every block in time
_LOSS = 0.03  # with every late one


class Punctuality:
    """Of one draft process."""

    def __init__(self) -> None:
        self.share = _FIRST  # of the time there is

    def observe(self, *, was_late: bool) -> None:
        """What became of a block that was drafted for the outcome that came."""
        change = -_LOSS if was_late else _GAIN
        self.share = min(_MOST, max(_LEAST, self.share + change))
