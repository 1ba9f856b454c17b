# pyright: strict
"""The HTTP server around the app: one port, limits, start and stop. Knows no requests."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

import uvicorn

from specserve.api.http.app import make_app
from specserve.api.http.limited_protocol import LimitedProtocol
from specserve.api.service import Service
from specserve.errors import Unsupported

_BACKLOG = 1024
_IDLE_S = 75  # that a connection without a request stays open, longer than balancers keep theirs
# Of an answer that its client does not read at all: the kernel then ends the connection. A client
# that reads too slowly is ended by the limit of its buffer.
_UNREAD_MS = 30_000
_SHUTDOWN_GRACE_S = 1  # for responses already written to reach their clients


class _Server(uvicorn.Server):
    """Signals are the process's own business."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpServer:
    """Serves one `Service` until stopped, beside the other front end. `port` is the bound one."""

    def __init__(self, service: Service, port: int) -> None:
        """Bind at once; raises Unsupported naming the port if that fails."""
        door = service.config.server
        self._socket = socket.socket(door.family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by every connection.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        try:
            self._socket.bind((door.host, port))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise Unsupported(
                f"server.http_port: cannot listen on {door.place}:{port}: {error.strerror}; choose "
                "another with --http-port (0: any free one), or none with --no-http"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if door.tls_cert else 'http'}://{door.place}:{self.port}"
        config = uvicorn.Config(
            make_app(service),
            lifespan="off",
            log_config=None,
            log_level="error",  # below, strangers could fill the log with what is no HTTP
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=LimitedProtocol,
            ws="none",
            ssl_certfile=door.tls_cert,
            ssl_keyfile=door.tls_key,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on; requests are refused until the target is ready."""
        serving = self._server.serve(sockets=[self._socket])
        self._task = asyncio.create_task(serving, name="http")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """After the hub has ended all requests."""
        self._server.should_exit = True
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task
        self._socket.close()
