# pyright: strict
"""What all front ends of one API process share: the hub, the tokenizer, the state of the service.

Knows no wire. A front end asks for sessions here and reads `state`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from specserve.api.call import MAX_MESSAGE_BYTES, STREAM_BUFFER_ROUNDS, GenerateCall, limits_of
from specserve.api.hub import Hub
from specserve.api.metrics import Metrics
from specserve.api.session import Session
from specserve.api.tokenizer import TextTokenizer
from specserve.api.tracing import Tracer
from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig
from specserve.types import Ready, SamplingParams
from specserve.validation import Limits


class Service:
    """One served model. Create it inside a running loop."""

    def __init__(
        self,
        config: ResolvedConfig,
        control_dir: Path,
        tokenizer: TextTokenizer,
        sampling_defaults: SamplingParams | None = None,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        buffer_rounds: int = STREAM_BUFFER_ROUNDS,
    ) -> None:
        """`sampling_defaults`: what requests leave unset; None: neutral values.

        `buffer_rounds` may a slow reader lag.
        """
        self.config = config
        self.control_dir = control_dir
        self.max_message_bytes = max_message_bytes
        self.buffer_rounds = buffer_rounds
        self.tokenizer = tokenizer
        self.sampling_defaults = sampling_defaults or SamplingParams()
        self.started_s = time.monotonic()
        self.hub = Hub(
            control_dir,
            max_requests=config.server.max_queued_requests,
            buffer_rounds=buffer_rounds,
            silence_s=config.engine.hang_timeout_s,
        )
        self.metrics = Metrics(lambda: self.hub.load, self._name, lambda: self.hub.num_in_flight)
        endpoint = config.telemetry.otlp_endpoint
        self.tracer = None if endpoint is None else Tracer(endpoint, self._name)
        # Awaited before a drain refuses anything, so that balancers look away first.
        self.before_drain: list[Callable[[], Awaitable[None]]] = []

    @property
    def ready(self) -> Ready:
        """What is served; raises Unavailable while it is loading or after it was lost."""
        if not self.hub.ready.done():
            raise Unavailable("loading: the target is not ready yet")
        return self.hub.ready.result()

    @property
    def limits(self) -> Limits:
        """What requests are held against; raises Unavailable as `ready` does."""
        return limits_of(self.ready)

    @property
    def state(self) -> str:
        """ "loading", "ready", "degraded", "draining" or "target lost".

        Degraded: a draft process is missing, which costs speed and nothing else.
        """
        if self.hub.lost.is_set():
            return "target lost"
        if self.hub.draining.is_set():
            return "draining"
        if not self.hub.ready.done():
            return "loading"
        load = self.hub.load
        return "ready" if load.num_drafts_attached >= load.num_draft_processes else "degraded"

    async def until_ready(self) -> Ready:
        ready = await asyncio.shield(self.hub.ready)  # others wait for it too
        self.tokenizer.limits = limits_of(ready)
        return ready

    def session(self, call: GenerateCall) -> Session:
        return Session(call, self.hub, self.tokenizer, self.metrics, self.tracer)

    def _name(self) -> str:
        """Of what is served; empty before it is known."""
        ready = self.hub.ready
        is_known = ready.done() and not ready.cancelled() and ready.exception() is None
        return ready.result().model if is_known else ""

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, wait for running ones; returns how many were left at the end."""
        for announce in self.before_drain:
            await announce()
        self.hub.begin_drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self.hub.idle()
        except TimeoutError:
            pass  # the number of requests left says so
        return self.hub.num_in_flight

    def close(self) -> None:
        self.hub.close()
        self.tokenizer.close()
        if self.tracer is not None:
            self.tracer.close()
