"""A gRPC server that answers calls of methods it does not have without reading their names.

grpc's own decodes the path of such a call in the loop that takes all calls: one that is not UTF-8
ends that loop, and with it the server, whoever sent it (grpcio 1.85). Methods that there are do not
need it: the core matches them by their bytes. All that this module touches of grpc is private to
it; `tests/specserve/api/test_unknown_calls.py` says whether it still fits.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc

_NAME = "/unknown"  # of the method, to interceptors and in grpc's own log


class _Core(cygrpc.AioServer):  # pyright: ignore[reportAttributeAccessIssue,reportUntypedBaseClass]
    asked_first: tuple[grpc.aio.ServerInterceptor, ...] = ()

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[Any]":
        """The next call of `method`; None: of any that there is not, which the loop never sees."""
        if method is not None:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._refuse_unknown_calls())

    async def _refuse_unknown_calls(self) -> None:
        """Until the server stops, which raises what grpc's loop expects then."""
        none: Any = cygrpc._MethodResolver([], {})  # pyright: ignore
        loop, refusing = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            call = await self._request_call()
            refusal: Any = cygrpc._handle_rpc(_NAME, none, self.asked_first, call, loop, False)  # pyright: ignore
            scheduled: Any = cygrpc._schedule_rpc_coro(refusal, call, loop, _NAME)  # pyright: ignore
            task: asyncio.Task[None] = loop.create_task(scheduled, name="unknown call")
            refusing.add(task)  # the loop holds tasks weakly
            task.add_done_callback(refusing.discard)


class Server(grpc.aio._server.Server):  # pyright: ignore
    """As `grpc.aio.server` makes one. All handlers must be registered by their methods' names."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, int]],
    ) -> None:
        # Not the base class's: it makes the core that this one is to replace.
        self._loop = cygrpc.get_working_loop()  # pyright: ignore
        self._server = _Core(self._loop, None, (), tuple(interceptors), tuple(options), None)
        self._server.asked_first = tuple(interceptors)
