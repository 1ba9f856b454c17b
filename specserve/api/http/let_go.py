# pyright: strict
"""Connections that are let go of when they end, however they end."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class LetGoProtocol(HttpToolsProtocol):
    """uvicorn's own keeps what a client has reset for as long as it may stay idle (uvicorn 0.54).

    The timer that would close it is stopped only where the client said goodbye.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
