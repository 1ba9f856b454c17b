# ruff: noqa: N802 - methods are named by the proto
"""The gRPC front end: thin servicers between protobuf and `Service`. Decides nothing itself.

Streaming methods write instead of yielding: a cancelled call then unwinds through `aclosing` at
once, which aborts the request, while a suspended generator would wait for the collector.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

import grpc.aio

from specserve import __version__
from specserve.api.call import GenerateCall
from specserve.api.events import Event
from specserve.api.from_proto import call_of
from specserve.api.grpc_calls import counting_malformed, events_of, taken
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.keys import caller, require_admin
from specserve.api.service import Service
from specserve.api.status import Context, with_status
from specserve.api.to_proto import (
    ResponseBuilder,
    load_of,
    model_info_of,
    spec_config_of,
    spec_stats_of,
    stream_response_of,
)
from specserve.errors import Cancelled, Exhausted, InvalidField, Unavailable, Unsupported, from_code
from specserve.types import Profiled
from specserve.validation import MAX_LOGPROBS, MAX_SAMPLES

SERVICES = tuple(f"specserve.v1.{name}" for name in ("Generation", "Control", "Admin", "SpecInfo"))

_MAX_PROFILE_ROUNDS = 1000
_MAX_DRAIN_S = 86_400.0
_TELLING_S = 0.2  # for an answer to reach its caller


class GenerationServicer:
    """Text from a prompt. What ends a request here is thrown into it, and counts as what it is."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @counting_malformed
    @with_status
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        builder = ResponseBuilder(self.service.max_message_bytes)
        async with aclosing(self._events(request, context, is_streamed=False)) as events:
            async for event in events:
                try:
                    builder.add(event)
                except Exhausted as error:
                    await events.athrow(error)
        return builder.build()

    @counting_malformed
    @with_status
    async def GenerateStream(self, request: pb.GenerateRequest, context: Context) -> None:
        async with aclosing(self._events(request, context, is_streamed=True)) as events:
            async for event in events:
                try:
                    await taken(context.write(stream_response_of(event)))
                except Exhausted as error:
                    await events.athrow(error)

    def _events(
        self, request: pb.GenerateRequest, context: Context, *, is_streamed: bool
    ) -> AsyncGenerator[Event]:
        service = self.service

        def make_call(remaining_s: float | None) -> GenerateCall:
            limits, defaults = service.limits, service.sampling_defaults
            return call_of(request, remaining_s, limits, defaults, is_streamed=is_streamed)

        return events_of(service, context, make_call)


class ControlServicer:
    """What is served and how busy it is; ending requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @with_status
    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        service, config = self._service, self._service.config
        return pb.GetServerInfoResponse(
            version=__version__,
            topology=config.topology.topology,
            oversubscribed=config.oversubscribed,
            uptime_s=time.monotonic() - service.started_s,
            limits=pb.Limits(
                max_queued_requests=config.server.max_queued_requests,
                max_samples=MAX_SAMPLES,
                max_logprobs=MAX_LOGPROBS,
                max_message_bytes=service.max_message_bytes,
                stream_buffer_rounds=service.buffer_rounds,
            ),
            state=service.state,
        )

    @with_status
    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        service = self._service
        has_template = service.tokenizer.has_chat_template
        return model_info_of(service.ready, has_template, service.sampling_defaults)

    @with_status
    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        hub = self._service.hub
        return load_of(
            hub.load,
            age_s=time.monotonic() - hub.load_s,
            num_in_flight=hub.num_in_flight,
            num_malformed_frames=hub.num_malformed_frames,
            draining=hub.draining.is_set(),
        )

    @with_status
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        error = Cancelled("the request was aborted")
        self._service.hub.abort(request.request_id, caller.get(), error)
        return pb.AbortResponse()


class AdminServicer:
    """For operators: where there are keys, those named so."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @with_status
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        require_admin()
        timeout_s = self._service.config.server.drain_timeout_s
        if request.HasField("timeout_s"):
            timeout_s = request.timeout_s
            if not 0 <= timeout_s <= _MAX_DRAIN_S:
                raise InvalidField("timeout_s", f"{timeout_s} is not within 0 to {_MAX_DRAIN_S:g}")
        num_left = await self._service.drain(timeout_s)
        self._service.hub.drain_target()
        return pb.DrainResponse(num_in_flight=num_left)

    @with_status
    async def Profile(self, request: pb.ProfileRequest, context: Context) -> pb.ProfileResponse:
        require_admin()
        num_rounds = request.num_rounds if request.HasField("num_rounds") else 20
        if not 1 <= num_rounds <= _MAX_PROFILE_ROUNDS:
            raise InvalidField("num_rounds", f"{num_rounds} is not within 1 to 1000")
        # The server chooses the place: a path from a client would be a way to overwrite files.
        path = Path(tempfile.mkdtemp(prefix="specserve-profile-"), "trace.json")
        try:
            profiled = await self._profile(num_rounds, path, context.time_remaining())
            if profiled.error:
                raise from_code("FAILED_PRECONDITION", profiled.error)
        except BaseException:
            with suppress(OSError):  # a trace that was written after all stays
                path.parent.rmdir()
            raise
        return pb.ProfileResponse(path=profiled.path)

    async def _profile(self, num_rounds: int, path: Path, limit_s: float | None) -> Profiled:
        """Gives up in time to tell a caller why, who leaves after `limit_s`."""
        if limit_s is not None:
            limit_s -= min(_TELLING_S, limit_s / 2)
        try:
            async with asyncio.timeout(limit_s):
                return await self._service.hub.profile(num_rounds, str(path))
        except TimeoutError as error:
            raise Unsupported(
                f"profile: fewer than {num_rounds} rounds ran before the deadline; "
                "send requests meanwhile"
            ) from error


class SpecInfoServicer:
    """What speculation is configured to do and achieves; zeros while it is off."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @with_status
    async def GetSpecConfig(
        self, request: pb.GetSpecConfigRequest, context: Context
    ) -> pb.GetSpecConfigResponse:
        return spec_config_of(self._service.ready, self._service.config)

    @with_status
    async def WatchSpecStats(self, request: pb.WatchSpecStatsRequest, context: Context) -> None:
        interval_s = request.interval_s if request.HasField("interval_s") else 1.0
        if not 0.1 <= interval_s <= 60:
            raise InvalidField("interval_s", f"{interval_s} is not within 0.1 to 60")
        hub = self._service.hub
        while not hub.lost.is_set():
            await context.write(spec_stats_of(hub.load))
            # A drain must not wait for watchers, who would watch forever.
            with suppress(TimeoutError):
                await asyncio.wait_for(hub.draining.wait(), interval_s)
            if hub.draining.is_set():
                return
        raise Unavailable("target lost")


def add_servicers(service: Service, server: grpc.aio.Server) -> None:
    """Register everything of `SERVICES`."""
    stubs.add_GenerationServicer_to_server(GenerationServicer(service), server)
    stubs.add_ControlServicer_to_server(ControlServicer(service), server)
    stubs.add_AdminServicer_to_server(AdminServicer(service), server)
    stubs.add_SpecInfoServicer_to_server(SpecInfoServicer(service), server)
