# pyright: strict
"""The HTTP server around the app: one port, limits, start and stop. Knows no requests."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specserve.api.http.app import make_app
from specserve.api.service import Service
from specserve.errors import Unsupported
from specserve.settings.config import HOST

_BACKLOG = 1024
_MAX_HEADER_BYTES = 16 * 1024
_IDLE_S = 75  # that a connection without a request stays open, longer than balancers keep theirs
_SHUTDOWN_GRACE_S = 1  # for responses already written to reach their clients


class _Server(uvicorn.Server):
    """Signals are the process's own business."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ForgettingProtocol(HttpToolsProtocol):
    """Lets go of connections when they end, however they end.

    uvicorn's own keeps one that a client has reset for as long as it might have stayed idle: it
    stops the timer only where the client said goodbye (uvicorn 0.54).
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


class HttpServer:
    """Serves one `Service` until stopped, beside the other front end. `port` is the bound one."""

    def __init__(self, service: Service, port: int) -> None:
        """Bind at once; raises Unsupported naming the port if that fails."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise Unsupported(
                f"server.http_port: cannot listen on {HOST}:{port}: {error.strerror}; choose "
                "another with --http-port (0: any free one), or none with --no-http"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        config = uvicorn.Config(
            make_app(service),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=ForgettingProtocol,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
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
