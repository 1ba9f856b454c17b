# pyright: strict
"""What a service counts by itself, read through its public API."""

import asyncio
import time

from specserve.client import AsyncClient

# Since the start of the target. `forward_s`, `draft_s` and `wait_s` are seconds of decode rounds:
# the target's forward; drafting, looking up and reporting before it; of that, waiting for a draft.
# A draft batch is what a draft process drafts and sends at once; `wave_s` is how long all of them
# took; a late one arrives when the rounds of all of its blocks are over.
NAMES = (
    "num_decode_rounds", "forward_s", "draft_s", "wait_s", "num_waves", "num_late_waves", "wave_s",
)  # fmt: skip
_PERIOD_S = 0.02
_TIMEOUT_S = 2.0

Counters = dict[str, float]


class CounterReader:
    """Of one service. Use it inside of one running loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def read(self) -> Counters:
        """As the target last published them."""
        stats = await self._client.spec_stats()
        return {name: float(getattr(stats, name)) for name in NAMES}

    async def read_after(self, num_generated_tokens: float) -> Counters:
        """Once so many tokens in all have been counted; the target publishes now and then."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            load = await self._client.load()
            if load.num_generated_tokens >= num_generated_tokens:
                break
            await asyncio.sleep(_PERIOD_S)
        return await self.read()


def rise(after: Counters, before: Counters) -> Counters:
    """By how much each has risen."""
    return {name: after[name] - before[name] for name in after.keys() & before.keys()}
