"""grpc.health.v1: "" says that the process is alive, a service's name that it takes requests.

Loading: alive, not ready. Draining, stalled or without a target: neither, so that nobody sends any
more; a target that goes on turns both back.
Lost draft processes change neither: what they do for speed has a name of its own, `DRAFT`.
"""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from specserve.api.health_servicer import NOT_SERVING, SERVING, HealthServicer
from specserve.api.hub import Hub

NAME = "grpc.health.v1.Health"
DRAFT = "specserve.draft"  # serving: every draft process works with the target
# What reports that come together tell is shown for so long each: watchers see the last one alone.
_SHOWN_S = 0.01


class Health:
    """Keeps the standard health service in step with the hub."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = services
        self._servicer = HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def follow(self, hub: Hub) -> None:
        """Serving from when the target is ready until it stalls; for good once it is lost."""
        stalls = hub.stalls()
        self._set(self._services, NOT_SERVING)
        await hub.ready
        self._set(self._services, SERVING)
        while not hub.lost.is_set():
            status = NOT_SERVING if await stalls.get() else SERVING
            self._set(("", *self._services), status)
        await self.stop_serving()

    def _set(self, names: tuple[str, ...], status: int) -> None:
        for name in names:
            self._servicer.set(name, status)

    async def follow_drafts(self, hub: Hub, num_draft_processes: int) -> None:
        """Keep `DRAFT` up to date, where there are draft processes; never returns."""
        loads, told = hub.loads(), NOT_SERVING
        self._servicer.set(DRAFT, told)
        while True:
            num_attached = (await loads.get()).num_drafts_attached
            status = SERVING if num_attached >= num_draft_processes else NOT_SERVING
            if status == told:
                continue
            told = status
            self._servicer.set(DRAFT, status)
            await asyncio.sleep(_SHOWN_S)

    async def stop_serving(self) -> None:
        """Final: nothing turns it back."""
        self._servicer.stop_serving()
