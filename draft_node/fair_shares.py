"""Whose turn it is on a device that serves several: who has had the least of its time goes first.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with equal weights. While all have work, each
gets the same time, to within the longest piece of work; who has less to do than its share leaves
the rest to the others. Time in which one had nothing to do is not owed to it later: it continues
from where the one that is served stands, and where nobody has anything to do all begin anew. Knows
no work and no clock.
"""

from collections.abc import Iterator


class FairShares:
    """Of `number` users of one device, numbered from 0.

    Each turn asks users in `order` for work: the first that has some is served, and those before
    it rest.
    """

    def __init__(self, number: int) -> None:
        self._used_s = [0.0] * number  # of the device; moved up for who was idle
        self._now_s = 0.0  # what the one that was served last had used when it began

    def order(self) -> Iterator[int]:
        """Who is to be asked for work, in this order, until one has some.

        Of those that have had equally much, the lower number comes first.
        """
        yield from sorted(range(len(self._used_s)), key=self._used_s.__getitem__)
        # All were asked, and nobody waits for what others have had more of. Else hours of listening
        # to one that says more than another would be owed to the latter.
        self._now_s = max(self._used_s)
        self._used_s = [self._now_s] * len(self._used_s)

    def serve(self, user: int, seconds: float) -> None:
        """It had work, which took so long."""
        self._now_s = max(self._now_s, self._used_s[user])
        self._used_s[user] += seconds

    def charge(self, user: int, seconds: float) -> None:
        """It took time without a turn of its own, as by what it sends."""
        self._used_s[user] += seconds

    def rest(self, user: int) -> None:
        """It had nothing to do when it was its turn."""
        self._used_s[user] = max(self._used_s[user], self._now_s)
