# pyright: strict
"""What a service counts by itself: read through its public API, those figures that it has.

A version of the service that does not report a figure makes it unknown here, never an error.
"""

import asyncio
import time
from typing import Any

import grpc.aio

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.client import AsyncClient
from specserve.errors import Unavailable

# Since the start of the target. `forward_s`, `draft_s` and `wait_s` are seconds of decode rounds:
# the target's forward; drafting, looking up and reporting before it; of that, waiting for a draft.
# A wave is what a draft process drafts and sends at once; `wave_s` is how long all of them took; a
# late one arrives when the rounds of all of its blocks are over.
NAMES = (
    "num_rounds", "num_generated_tokens", "num_lookups", "num_hits", "bytes_sent",
    "bytes_received", "num_decode_rounds", "forward_s", "draft_s", "wait_s", "num_waves",
    "num_late_waves", "wave_s",
)  # fmt: skip
_PERIOD_S = 0.02
_TIMEOUT_S = 2.0

Counters = dict[str, float]


class CounterReader:
    """Of one service. Use it inside of one running loop."""

    def __init__(self, client: AsyncClient, address: str) -> None:
        self._client = client
        # The client speaks of no stream of statistics.
        self._channel = grpc.aio.insecure_channel(address)
        self._spec_info: Any = stubs.SpecInfoStub(self._channel)

    async def read(self) -> Counters:
        """As the target last published them."""
        sources = (await self._statistics(), await self._client.load())
        found: Counters = {}
        for name in NAMES:
            values = [getattr(source, name) for source in sources if hasattr(source, name)]
            if values:
                found[name] = float(values[0])
        return found

    async def read_after(self, num_generated_tokens: float) -> Counters:
        """Once so many tokens in all have been counted; the target publishes now and then."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            load = await self._client.load()
            if load.num_generated_tokens >= num_generated_tokens:
                break
            await asyncio.sleep(_PERIOD_S)
        return await self.read()

    async def close(self) -> None:
        await self._channel.close()

    async def _statistics(self) -> Any:  # noqa: ANN401 - a message of a generated module
        call: Any = self._spec_info.WatchSpecStats(pb.WatchSpecStatsRequest())
        try:
            async for statistics in call:
                return statistics
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"statistics: {error.details()}") from error
        finally:
            call.cancel()
        return None


def rise(after: Counters, before: Counters) -> Counters:
    """By how much each has risen."""
    return {name: after[name] - before[name] for name in after.keys() & before.keys()}
