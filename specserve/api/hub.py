# pyright: strict
"""One connection to the target, many requests: what a round brought is dealt out to its readers.

Knows ids, buffers and whether the target lives; knows no text, no sampling and no gRPC.
Every open request has a bounded buffer. A reader that lags more than the limit loses its own
request and nothing else. A target that says nothing for a while has stalled: who asks for the
health of the service is told so. One that goes on saying nothing is lost, and every open request
ends with an error. Both are told by its loop, which reports a few times a second: a process that
lives and answers is no sign that anything is decoded.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from specserve.api.keys import Tenant
from specserve.api.open_request import OpenRequest
from specserve.api.pace import told_s
from specserve.api.places import Places
from specserve.errors import Exhausted, InvalidField, Leaving, SpecserveError, Unavailable
from specserve.transport.control.control import ApiControl, Received
from specserve.types import (
    Abort,
    Drain,
    Drained,
    FromTarget,
    Hello,
    Load,
    Profile,
    Profiled,
    PromptLogprobs,
    Ready,
    Request,
    RequestEnd,
    RoundEvents,
    StopSample,
    Submit,
)

log = logging.getLogger(__name__)

_HELLO_PERIOD_S = 0.5
_RECENT_S = 2.0  # that figures of now are of
_STALL_SHARE = 0.25  # of the silence that ends the service, after which its health is bad
# Longer than the target's pauses between reports. Where everything was paused, this process may
# wake first and find its own limit over.
_SECOND_LOOK_S = 2.0
# Messages that may wait for a target that says nothing; far fewer than its socket takes, since what
# ends requests is sent all the same. Clients that leave a service that is held up, and ask again,
# would make it lost.
_MOST_UNHEARD = 4096
# Whoever started both processes knows which of its ranks died, and says so soon after the end of
# the socket.
_LAUNCHERS_WORD_S = 0.3


class TargetSilent(Unavailable):
    """The target lives, or seems to, and has said nothing for too long."""


class Hub:
    """All open requests of one target. Use inside a running loop; `run` must be running."""

    def __init__(
        self,
        control_dir: Path,
        *,
        max_requests: int,
        max_per_tenant: int,
        buffer_rounds: int,
        silence_s: float,
    ) -> None:
        """`silence_s`: a target that sends nothing for this long counts as lost.

        `max_per_tenant` of `max_requests` in flight may be one tenant's; 0: all.
        """
        self._control = ApiControl(control_dir)
        self._places = Places(max_requests, max_per_tenant)
        self._buffer_rounds = buffer_rounds
        self._silence_s = silence_s
        # By tenant and id: nobody can end, or even notice, what another tenant asks for.
        self._requests: dict[tuple[str, str], OpenRequest] = {}
        self._by_wire_id: dict[str, OpenRequest] = {}
        self._num_admitted = 0
        self._num_unheard = 0  # messages to the target since it said anything
        self._idle = asyncio.Event()
        self._idle.set()
        self._profiles: dict[str, asyncio.Future[Profiled]] = {}  # by path; at most one
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self._drained_s = 0.0  # when a drain that has begun is out of time
        self.lost = asyncio.Event()
        self._silent = asyncio.Event()
        self.lost_detail = ""
        self.is_stalled = False  # the target has said nothing for a while
        self._stall_queues: list[asyncio.Queue[bool]] = []
        self.load = Load()
        self.load_s = time.monotonic()  # when it came
        self.recent: deque[Load] = deque()  # reports of the latest `_RECENT_S`, oldest first
        self._load_queues: list[asyncio.Queue[Load]] = []
        self._handlers: dict[type, Callable[..., None]] = {
            RoundEvents: self._on_round,
            PromptLogprobs: self._on_prompt_logprobs,
            RequestEnd: self._on_end,
            Load: self._on_load,
            Ready: self._on_ready,
            Drained: self._on_drained,
            Profiled: self._on_profiled,
        }

    @property
    def stall_s(self) -> float:
        """Silence of the target after which it counts as stalled."""
        return self._silence_s * _STALL_SHARE

    @property
    def _silence(self) -> str:
        return f"silent for {self._silence_s:g} s (engine.hang_timeout_s)"

    @property
    def num_in_flight(self) -> int:
        return len(self._requests)

    @property
    def num_malformed_frames(self) -> int:
        return self._control.num_malformed

    # --- requests ---------------------------------------------------------------------------

    def admit(self, request_id: str, tenant: Tenant) -> OpenRequest:
        """Reserve a place before any work is done.

        Raises:
            Unavailable: loading, or the target is lost; as Leaving while it drains.
            Busy: too many requests in flight, of all or of this tenant.
            InvalidField: a live request of this tenant has this id.
        """
        self.require_place(tenant)
        key = (tenant.identity, request_id)
        if key in self._requests:
            raise InvalidField("request_id", "a running request has this id")
        self._num_admitted += 1
        # Never reused: a client may reuse its id while rounds of the aborted namesake still arrive.
        wire_id = f"{self._num_admitted}:{request_id[:32]}"
        opened = OpenRequest(tenant, request_id, wire_id, self._buffer_rounds)
        self._requests[key] = self._by_wire_id[wire_id] = opened
        self._places.take(tenant)
        self._idle.clear()
        return opened

    def require_place(self, tenant: Tenant) -> None:
        """Raise what `admit` would for want of a place; for who has work to do before it."""
        if self.lost.is_set():
            raise Unavailable(self.lost_detail)
        if self.draining.is_set():
            running = f"{len(self._requests)} requests run to their end"
            wait_s = told_s(self._drained_s - time.monotonic())
            raise Leaving(f"draining: {running}, no new ones are taken", wait_s)
        if not self.ready.done():
            raise Unavailable("loading: the target is not ready yet")
        self._places.require(tenant)

    def submit(self, opened: OpenRequest, request: Request) -> None:
        """Send it to the target.

        Raises what the request ended with if it has ended already, while its prompt was encoded:
        the target would decode for nobody. Raises Unavailable if the target takes no more.
        """
        if opened.failure is not None:
            raise opened.failure
        if self._num_unheard >= _MOST_UNHEARD:
            raise Unavailable(f"the target is held up: {self._num_unheard} messages wait for it")
        self._control.send(Submit(msgspec.structs.replace(request, request_id=opened.wire_id)))
        self._num_unheard += 1
        opened.submitted = True

    def stop_sample(self, opened: OpenRequest, sample_index: int) -> None:
        """Nothing more is wanted of one sample."""
        self._send_quietly(StopSample(opened.wire_id, sample_index))

    def release(self, opened: OpenRequest) -> None:
        """The reader is gone; what the target still does for it is ended. Idempotent."""
        identity = opened.tenant.identity
        if self._by_wire_id.pop(opened.wire_id, None) is None:
            return
        del self._requests[identity, opened.request_id]
        self._places.free(opened.tenant)
        if not self._requests:
            self._idle.set()
        if opened.submitted and not opened.ended:
            opened.ended = True
            self._send_quietly(Abort(opened.wire_id))

    def abort(self, request_id: str, tenant: Tenant, error: SpecserveError) -> None:
        """End a request of a tenant's, if it has one of this id; its reader gets `error`."""
        opened = self._requests.get((tenant.identity, request_id))
        if opened is not None:
            self._abort(opened, error)

    def _abort(self, opened: OpenRequest, error: SpecserveError) -> None:
        opened.fail(error)
        self.release(opened)

    # --- the service ------------------------------------------------------------------------

    def begin_drain(self, timeout_s: float) -> None:
        """Refuse new requests from now on; running ones finish, or are cut after `timeout_s`."""
        self._drained_s = time.monotonic() + timeout_s
        self.draining.set()

    async def idle(self) -> None:
        """Return once no request is in flight."""
        await self._idle.wait()

    def drain_target(self) -> None:
        self._send_quietly(Drain())

    def loads(self) -> asyncio.Queue[Load]:
        """Every report of the target's from now on, for one who reads them as long as we live."""
        self._load_queues.append(asyncio.Queue())
        return self._load_queues[-1]

    def stalls(self) -> asyncio.Queue[bool]:
        """From now on: True when the target stalls or is lost, False when it goes on."""
        self._stall_queues.append(asyncio.Queue())
        return self._stall_queues[-1]

    async def profile(self, num_rounds: int, path: str) -> Profiled:
        """Record a trace on the target; raises Exhausted while another one is being recorded."""
        if self.lost.is_set():
            raise Unavailable(self.lost_detail)
        if self.draining.is_set():
            raise Unavailable("draining: no more rounds are to be expected")
        if self._profiles:
            raise Exhausted("profile: another one is being recorded")
        self._control.send(Profile(num_rounds, path))
        future = self._profiles[path] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self._profiles[path]
            if not future.done() or future.cancelled():  # the caller has left
                self._send_quietly(Profile(0, path))

    def target_lost(self, detail: str) -> None:
        """Fail every open request; nothing is accepted any more. The first detail counts."""
        if not self.lost.is_set():
            log.error("target lost: %s", detail)
            self._end(f"target lost: {detail}")

    def shut_down(self) -> None:
        """The same on purpose: what a drain has left over ends with an error."""
        if not self.lost.is_set():
            self._end("the service has stopped")

    def _end(self, detail: str) -> None:
        self.lost_detail = detail
        self.lost.set()
        self._note_stall(True)
        error = Unavailable(detail)
        self._fail_all(error)
        for profile in self._profiles.values():
            if not profile.done():  # answered in this very turn of the loop
                profile.set_exception(error)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # mark it as seen: nobody may be waiting

    async def silence(self) -> NoReturn:
        """Raise TargetSilent once the target has sent nothing for too long.

        Nobody else finds out: its process lives, or seems to.
        """
        await self._silent.wait()
        raise TargetSilent(f"the target was {self._silence}")

    async def run(self) -> None:
        """Deal out frames until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._greet())
            tasks.create_task(self._watch_socket())
            await self._deal_out()

    def close(self) -> None:
        self._control.close()

    async def _greet(self) -> None:
        while not self.ready.done():
            self._send_quietly(Hello())
            await asyncio.sleep(_HELLO_PERIOD_S)

    async def _watch_socket(self) -> None:
        await self._control.target_lost()
        await asyncio.sleep(_LAUNCHERS_WORD_S)
        self.target_lost("its process closed the control socket")

    async def _deal_out(self) -> None:
        while True:
            received = await self._next_frame()
            if received is None:
                self.target_lost(self._silence)
                self._silent.set()
                continue
            if received.lost:
                self._fail_all(Unavailable("control: frames from the target were lost"))
            self._dispatch(received.message)
            # Receiving does not suspend while frames wait: without this, nobody would read them.
            await asyncio.sleep(0)

    async def _next_frame(self) -> Received[FromTarget] | None:
        """None: the target has been silent for too long."""
        if not self.ready.done() or self.lost.is_set():
            return await self._receive(None)  # loading takes its time; the launcher bounds it
        second_look_s = min(_SECOND_LOOK_S, self.stall_s / 2)
        for limit_s in (self.stall_s, second_look_s):
            if (received := await self._receive(limit_s)) is not None:
                return received
        log.warning("the target has said nothing for %g s", self.stall_s)
        self._note_stall(True)
        for limit_s in (self._silence_s - self.stall_s - second_look_s, _SECOND_LOOK_S):
            if (received := await self._receive(limit_s)) is not None:
                log.warning("the target goes on")
                self._note_stall(False)
                return received
        return None

    def _note_stall(self, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        for queue in self._stall_queues:
            queue.put_nowait(is_stalled)

    async def _receive(self, limit_s: float | None) -> Received[FromTarget] | None:
        """None: nothing came in time."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._control.receive()
        except TimeoutError:
            return None

    def _dispatch(self, message: FromTarget) -> None:
        self._num_unheard = 0
        self._handlers[type(message)](message)

    def _on_round(self, message: RoundEvents) -> None:
        for delta in message.deltas:
            opened = self._by_wire_id.get(delta.request_id)
            if opened is not None and not opened.add_delta(message.round_id, delta):
                limit = self._buffer_rounds
                text = f"stream_buffer_rounds: the reader lags {limit} rounds behind, the limit"
                self._abort(opened, Exhausted(text))

    def _on_prompt_logprobs(self, message: PromptLogprobs) -> None:
        if opened := self._by_wire_id.get(message.request_id):
            opened.add(message)

    def _on_end(self, message: RequestEnd) -> None:
        if opened := self._by_wire_id.get(message.request_id):
            opened.ended = True
            opened.add(message)

    def _on_load(self, message: Load) -> None:
        self.load, self.load_s = message, time.monotonic()
        self.recent.append(message)
        # The second oldest is old enough to begin with, too.
        while len(self.recent) > 2 and message.uptime_s - self.recent[1].uptime_s >= _RECENT_S:
            self.recent.popleft()
        for queue in self._load_queues:
            queue.put_nowait(message)

    def _on_ready(self, message: Ready) -> None:
        if not self.ready.done():
            self.load = Load(num_blocks=message.num_blocks, num_free_blocks=message.num_blocks)
            self.load_s = time.monotonic()
            self.ready.set_result(message)

    def _on_drained(self, message: Drained) -> None:
        log.info("the target has drained")

    def _on_profiled(self, message: Profiled) -> None:
        profile = self._profiles.get(message.path)
        if profile is not None and not profile.done():
            profile.set_result(message)

    def _fail_all(self, error: SpecserveError) -> None:
        for opened in list(self._requests.values()):
            self._abort(opened, error)

    def _send_quietly(self, message: Hello | Abort | StopSample | Drain | Profile) -> None:
        """For what cannot be refused: a target that stopped reading is lost, not slow."""
        try:
            self._control.send(message)
            self._num_unheard += 1
        except Unavailable as error:
            self.target_lost(str(error))
