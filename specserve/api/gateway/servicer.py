# ruff: noqa: N802 - methods are named by the proto
# The base class has what a later version of the protocol may add, and names its arguments.
# pyright: reportIncompatibleMethodOverride=false
"""The methods that a gateway calls: thin, as those of our own services. Decides nothing itself."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

from specserve.api.call import GenerateCall
from specserve.api.gateway.about import health_of, loads_of, model_info_of, server_info_of
from specserve.api.gateway.answers import Answers
from specserve.api.gateway.requests import call_of
from specserve.api.gateway.tokenizer_bundle import archive_of, chunks_of
from specserve.api.grpc_calls import counting_malformed, events_of, taken
from specserve.api.keys import caller
from specserve.api.service import Service
from specserve.api.status import Context, with_status
from specserve.errors import Cancelled, Exhausted, Unsupported


def _unserved(reason: str) -> Any:  # noqa: ANN401
    """A method of the protocol that no worker of ours has, to clients of either kind."""

    async def refuse(_servicer: object, _request: object, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)

    return refuse


class VllmEngineServicer(stubs.VllmEngineServicer):
    """A worker of a gateway. What ends a request here is thrown into it, and counts as that."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._archive: bytes | None = None  # made when the first gateway asks

    @counting_malformed
    @with_status
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        service = self.service

        def make_call(remaining_s: float | None) -> GenerateCall:
            return call_of(request, remaining_s, service.limits)

        async with aclosing(events_of(service, context, make_call)) as events:
            answers = Answers(request, service.ready.eos_token_ids, service.max_message_bytes)
            async for event in events:
                try:
                    for message in answers.of(event):
                        await taken(context.write(message))
                except Exhausted as error:
                    await events.athrow(error)

    @with_status
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        for request_id in request.request_ids:
            error = Cancelled("the request was aborted")
            self.service.hub.abort(request_id, caller.get(), error)
        return pb.AbortResponse()

    @with_status
    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        return health_of(self.service)

    @with_status
    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return model_info_of(self.service)

    @with_status
    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        return server_info_of(self.service)

    @with_status
    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        return loads_of(self.service, request)

    @with_status
    async def GetTokenizer(self, request: common.GetTokenizerRequest, context: Context) -> None:
        target = self.service.config.model.target
        if target is None:
            raise Unsupported("GetTokenizer: the service was started without a model of its own")
        if self._archive is None:
            tokenizer = self.service.tokenizer
            self._archive = await tokenizer.off_loop(lambda: archive_of(Path(target)))
        for chunk in chunks_of(self._archive):
            await taken(context.write(chunk))

    Embed = _unserved("Embed: models here generate")
    FlushCache = _unserved(
        "FlushCache: prefixes are kept until their blocks are needed; requests that are to share "
        "none say `cache_salt` to specserve.v1"
    )
    StartProfile = StopProfile = _unserved(
        "StartProfile: specserve.v1.Admin.Profile records so many rounds and says where"
    )
    SubscribeKvEvents = _unserved(
        "SubscribeKvEvents: blocks of the cache are not told; GetLoads says how many are used"
    )


def add_servicer(service: Service, server: grpc.aio.Server) -> None:
    """Register the methods under their names."""
    stubs.add_VllmEngineServicer_to_server(VllmEngineServicer(service), server)
