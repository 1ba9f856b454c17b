# pyright: strict
"""What all front ends of one API process share: the hub, the tokenizer, the state of the service.

Knows no wire. A front end asks for sessions here and reads `state`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from specserve.api.call import MAX_MESSAGE_BYTES, STREAM_BUFFER_ROUNDS, GenerateCall, limits_of
from specserve.api.hub import Hub
from specserve.api.keys import Keys, caller
from specserve.api.metrics import Metrics
from specserve.api.session import Session
from specserve.api.tokenizer import TextTokenizer
from specserve.api.tracing import Tracer
from specserve.errors import SpecserveError, Unavailable
from specserve.grammars.checker import GrammarChecker
from specserve.grammars.compiler import Vocabulary
from specserve.settings.config import ResolvedConfig
from specserve.types import Ready, SamplingParams
from specserve.validation import Limits

log = logging.getLogger(__name__)

_TELL_DRAIN_S = 5.0  # between lines of how many requests are left


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
        self.grammars = GrammarChecker(self._vocabulary)
        self.started_s = time.monotonic()
        key_file = config.server.api_key_file
        self.keys = None if key_file is None else Keys(Path(key_file))  # None: nobody needs one
        self.hub = Hub(
            control_dir,
            max_requests=config.server.max_queued_requests,
            max_per_tenant=config.server.max_requests_per_key,
            buffer_rounds=buffer_rounds,
            silence_s=config.engine.hang_timeout_s,
        )
        self.metrics = Metrics(lambda: self.hub.load, self._name, lambda: self.hub.num_in_flight)
        endpoint = config.telemetry.otlp_endpoint
        self.tracer = None if endpoint is None else Tracer(endpoint, self._name)
        self.is_leaving = False  # a drain has begun, and probes say so
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
        """ "loading", "ready", "degraded", "stalled", "draining" or "target lost".

        Degraded: a draft process is missing, which costs speed and nothing else. Stalled: the
        target's loop has said nothing for a quarter of `engine.hang_timeout_s`.
        """
        if self.hub.lost.is_set():
            return "target lost"
        if self.is_leaving or self.hub.draining.is_set():
            return "draining"
        if not self.hub.ready.done():
            return "loading"
        if self.hub.is_stalled:
            return "stalled"
        load = self.hub.load
        return "ready" if load.num_drafts_attached >= load.num_draft_processes else "degraded"

    async def until_ready(self) -> Ready:
        ready = await asyncio.shield(self.hub.ready)  # others wait for it too
        self.tokenizer.limits = limits_of(ready)
        return ready

    def require_place(self) -> None:
        """Raise why a request of the caller would be refused, whatever it is."""
        self.hub.require_place(caller.get())

    @contextmanager
    def before_session(self) -> Generator[None]:
        """What is raised within ends a request that no session will count, so it is counted."""
        try:
            yield
        except Exception as error:
            self.refused(error.code if isinstance(error, SpecserveError) else SpecserveError.code)
            raise

    def refused(self, code: str) -> None:
        """Count a request that got no session, by gRPC status name, once a model has a name."""
        if self._name():
            self.metrics.failed(code)

    def session(self, call: GenerateCall) -> Session:
        """On the caller's behalf."""
        return Session(
            call,
            caller.get(),
            self.hub,
            self.tokenizer,
            self.grammars,
            self.metrics,
            self.tracer,
        )

    def _vocabulary(self) -> Vocabulary:
        """Of what is served, once it is."""
        ready = self.ready
        return Vocabulary(self.config.model.target or "", ready.vocab_size, ready.eos_token_ids)

    def _name(self) -> str:
        """Of what is served; empty before it is known."""
        ready = self.hub.ready
        is_known = ready.done() and not ready.cancelled() and ready.exception() is None
        return ready.result().model if is_known else ""

    async def drain(self, timeout_s: float) -> int:
        """Be unready, then refuse new requests, wait for running ones; returns how many are left.

        Probes say that it is unready for `server.drain_notice_s` before anybody is refused.
        """
        self.is_leaving = True
        for announce in self.before_drain:
            await announce()
        notice_s = self.config.server.drain_notice_s
        if notice_s > 0 and not self.hub.draining.is_set():
            log.info("unready: new requests are taken for %g s more (--drain-notice-s)", notice_s)
            # Whoever asked for it may leave meanwhile: what was announced comes all the same.
            loop = asyncio.get_running_loop()
            loop.call_later(notice_s, self.hub.begin_drain, timeout_s)
            await self.hub.draining.wait()
        self.hub.begin_drain(timeout_s)
        log.info("draining: %d requests run, for %g s at most", self.hub.num_in_flight, timeout_s)
        telling = asyncio.create_task(self._tell_drain(), name="drain")
        try:
            async with asyncio.timeout(timeout_s):
                await self.hub.idle()
        except TimeoutError:
            num_cut = self.hub.num_in_flight
            log.warning("out of time: %d requests are cut (--drain-timeout-s)", num_cut)
        else:
            log.info("drained: no request runs")
        finally:
            telling.cancel()
        return self.hub.num_in_flight

    async def _tell_drain(self) -> None:
        while True:
            await asyncio.sleep(_TELL_DRAIN_S)
            log.info("draining: %d requests still run", self.hub.num_in_flight)

    async def close(self) -> None:
        self.hub.close()
        self.tokenizer.close()
        if self.tracer is not None:
            self.tracer.close()
        await self.grammars.close()
