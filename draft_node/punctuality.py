# pyright: strict
"""How much of the time until the target looks may be drafted in, so that few blocks come too late.

The target says how long its rounds usually take. The next one may be shorter, blocks have to be
scored and sent when they are drafted, and others may have had the core. How much of the time could
have been used is seen when the round is over; what is used follows the shortest tenth of that.
Receives times, never tokens.
"""

_FIRST, _LEAST, _MOST = 0.85, 0.5, 1.0
# By whether there was time left or not enough: one round in eleven is then shorter than what is
# used of it, however long the others are.
_UP, _DOWN = 0.004, 0.04


class Punctuality:
    """Of one draft process."""

    def __init__(self) -> None:
        self.share = _FIRST  # of the time there is

    def observe(self, usable: float) -> None:
        """A round is over, of whose foretold time so much could have been used."""
        step = _UP if usable > self.share else -_DOWN
        self.share = min(_MOST, max(_LEAST, self.share + step))
