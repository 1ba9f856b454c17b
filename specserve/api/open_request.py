# pyright: strict
"""A request between admission and its end: what arrived for it and its reader has not read yet.

Knows the limit of its buffer and nothing of who fills it.
"""

import asyncio
from collections import deque

from specserve.api.keys import Tenant
from specserve.errors import SpecserveError
from specserve.types import PromptLogprobs, RequestEnd, SampleDelta

RoundDeltas = list[SampleDelta]
TargetEvent = RoundDeltas | PromptLogprobs | RequestEnd


class OpenRequest:
    """A request between admission and its end, and what its reader has not read yet."""

    def __init__(self, tenant: Tenant, request_id: str, wire_id: str, max_rounds: int) -> None:
        self.tenant = tenant
        self.request_id = request_id  # the client's, which another tenant's may equal
        self.wire_id = wire_id  # the target's
        self.submitted = False
        self.ended = False  # the target knows it no longer
        self._max_rounds = max_rounds
        self._events: deque[TargetEvent] = deque()
        self._last_round: int | None = None
        self.failure: SpecserveError | None = None  # what it ended with, if not by the target
        self._arrived = asyncio.Event()

    async def next(self) -> TargetEvent:
        """The next round, prompt logprobs or end; raises the error the request ended with."""
        while not self._events and self.failure is None:
            self._arrived.clear()
            await self._arrived.wait()
        if self.failure is not None:
            raise self.failure
        return self._events.popleft()

    def add_delta(self, round_id: int, delta: SampleDelta) -> bool:
        """False if the reader lags too far behind to take one more round."""
        last = self._events[-1] if self._events else None
        if isinstance(last, list) and self._last_round == round_id:
            last.append(delta)
            return True
        if len(self._events) >= self._max_rounds:
            return False
        self._last_round = round_id
        self.add([delta])
        return True

    def add(self, event: TargetEvent) -> None:
        self._events.append(event)
        self._arrived.set()

    def fail(self, error: SpecserveError) -> None:
        """End it for its reader, at once: buffered rounds are dropped, the first error counts."""
        self._events.clear()
        self.failure = self.failure or error
        self._arrived.set()
