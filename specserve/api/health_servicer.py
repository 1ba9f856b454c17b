"""The methods of grpc.health.v1, for callers who may be anybody: they need no key.

grpc's own servicer holds a lock of a name while it tells a watcher of its status, so that one who
reads nothing keeps that status from changing for all, and with it whoever changes it: a drain.
Knows names and statuses, and nothing of what they mean.
"""

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MAX_WATCHERS = 1024  # each holds memory for as long as its connection lives

_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Statuses by name, and who watches them."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {"": SERVING}
        self._is_final = False
        self._change = asyncio.Event()  # the next one; every change has an event of its own
        self._num_watchers = 0

    def set(self, name: str, status: int) -> None:
        """Waits for nobody. Watchers hear of it soon; of several at once, of the last alone."""
        if self._is_final:
            return
        self._statuses[name] = status
        self._change.set()
        self._change = asyncio.Event()

    def stop_serving(self) -> None:
        """Nothing is served under any name from now on, whatever is set later."""
        for name in list(self._statuses):
            self.set(name, NOT_SERVING)
        self._is_final = True

    async def Check(  # noqa: N802 - named by the proto
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if (status := self._statuses.get(request.service)) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        if self._num_watchers >= MAX_WATCHERS:
            problem = f"watchers: there are {MAX_WATCHERS}, which is the limit; Check has none"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
        self._num_watchers += 1
        try:
            told = None
            while True:
                change = self._change  # before the look: what comes after it is not missed
                status = self._statuses.get(request.service, _UNKNOWN)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    told = status
                await change.wait()
        finally:
            self._num_watchers -= 1
