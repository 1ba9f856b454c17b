# pyright: strict
"""What the target counted of a request's drafts, without what its client was never sent.

A stop string is found here, after the target has gone on: tokens behind it are dropped, and so are
the rounds that the target ran before it heard. Knows rounds of one request, not its text.
"""

from itertools import zip_longest

from specserve.api.events import SpecRecord
from specserve.types import RequestStats, SampleDelta, TokenOrigin


class UnsentDrafts:
    """Counts of one request's rounds and drafted tokens that were dropped."""

    def __init__(self) -> None:
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted_per_position: list[int] = []

    def drop(self, delta: SampleDelta, num_sent: int) -> None:
        """Of `delta`, whose drafted tokens come first, only the first `num_sent` were sent."""
        if num_sent == len(delta.token_ids):
            return
        num_drafted = delta.origins.count(TokenOrigin.DRAFTED)
        counts = self._num_accepted_per_position
        counts += [0] * (num_drafted - len(counts))
        for position in range(num_sent, num_drafted):
            counts[position] += 1
        if num_sent == 0 and delta.verify_len:
            self._num_drafts += 1
            self._num_draft_tokens += delta.verify_len

    def record(self, stats: RequestStats) -> SpecRecord:
        """What is left of the target's counts, once the request has ended."""
        accepted = stats.num_accepted_per_position
        pairs = zip_longest(accepted, self._num_accepted_per_position, fillvalue=0)
        per_position = [counted - unsent for counted, unsent in pairs]
        return SpecRecord(
            num_drafts=stats.num_drafts - self._num_drafts,
            num_draft_tokens=stats.num_drafted_tokens - self._num_draft_tokens,
            num_accepted_tokens=sum(per_position),
            num_accepted_tokens_per_pos=per_position,
        )
