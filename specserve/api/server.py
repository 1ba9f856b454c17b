"""The gRPC server around the servicers: limits, health, reflection, one port.

Knows how to start and stop; knows neither requests nor processes.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from specserve.api import grpc as front_end
from specserve.api import health, unknown_calls
from specserve.api.gateway import offer
from specserve.api.grpc_keys import KeyRequired
from specserve.api.malformed import MalformedRequests
from specserve.api.service import Service
from specserve.errors import SpecserveError, Unsupported
from specserve.settings.config import ServerConfig

_STANDARD = (health.NAME, reflection.SERVICE_NAME)
_MAX_HEADER_BYTES = 16 * 1024
# Far above the queue's limit, whose refusal says more than a bare REFUSED_STREAM does: refused
# calls that are still closing count as streams.
_MAX_STREAMS = 65_536
_HANDSHAKE_MS = 10_000  # after which a connection that has said nothing is ended
_SHUTDOWN_GRACE_S = 1.0  # for responses already written to reach their clients


class GrpcServer:
    """Serves one `Service` until stopped. `port` is the bound one."""

    def __init__(self, service: Service) -> None:
        """Bind at once; raises Unsupported naming the port if that fails."""
        self._service = service
        keys = [] if service.keys is None else [KeyRequired(service.keys)]
        services = (*front_end.SERVICES, *offer.offered())
        self._server = unknown_calls.Server(
            interceptors=[*keys, MalformedRequests(services, _STANDARD)],
            options=_options(service.max_message_bytes),
        )
        self._health = health.Health(services)
        self._health.add_to(self._server)
        service.before_drain.append(self._health.stop_serving)
        front_end.add_servicers(service, self._server)
        offer.add_to(self._server, service)
        reflection.enable_server_reflection((*services, *_STANDARD), self._server)
        door = service.config.server
        place = f"{door.place}:{door.grpc_port}"
        try:
            self.port = _listen(self._server, place, door)
        except RuntimeError as error:
            raise Unsupported(
                f"server.grpc_port: cannot listen on {place}, perhaps it is in use; choose "
                "another with server.grpc_port (0: any free one)"
            ) from error
        self.address = f"{door.place}:{self.port}"
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Answer from now on; requests are refused until the target is ready."""
        hub = self._service.hub
        self._tasks = [
            asyncio.create_task(hub.run(), name="hub"),
            asyncio.create_task(self._health.follow(hub), name="health"),
        ]
        if num_drafts := self._service.config.num_draft_processes:
            following = self._health.follow_drafts(hub, num_drafts)
            self._tasks.append(asyncio.create_task(following, name="draft health"))
        await self._server.start()

    async def failed(self) -> None:
        """Return never, or raise why nothing is served any more.

        The target has fallen silent, or a defect ended the hub. Deaths are the supervisor's matter.
        """
        silence = asyncio.create_task(self._service.hub.silence(), name="silence")
        try:  # whoever stops waiting must not stop the hub
            await asyncio.wait((self._tasks[0], silence), return_when=asyncio.FIRST_COMPLETED)
            for task in (self._tasks[0], silence):
                if task.done():
                    task.result()
        finally:
            silence.cancel()

    async def stop(self) -> None:
        """End what is still running, with an error to its client, and free everything."""
        self._service.hub.shut_down()
        await self._server.stop(_SHUTDOWN_GRACE_S)
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, SpecserveError):
                await task
        await self._service.close()


def _listen(server: grpc.aio.Server, place: str, door: ServerConfig) -> int:
    """The bound port. Raises RuntimeError."""
    if door.tls_cert is None or door.tls_key is None:
        return server.add_insecure_port(place)
    pair = Path(door.tls_key).read_bytes(), Path(door.tls_cert).read_bytes()
    return server.add_secure_port(place, grpc.ssl_server_credentials([pair]))


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # two servers on one port must be an error
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", _MAX_HEADER_BYTES),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.keepalive_time_ms", 30_000),  # finds clients whose machine has gone
        ("grpc.keepalive_timeout_ms", 10_000),
        # Clients ask whether we live while they wait for a whole answer, in which nothing is sent.
        # None is cut off for asking often: that would end its requests.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ]
