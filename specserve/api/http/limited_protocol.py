# pyright: strict
"""uvicorn's HTTP protocol with limits on what comes before a request's body: bytes, lines, time.

A client that sends its head slowly, or never ends it, holds a connection for so long and no longer,
and no more than so many bytes of memory. Bodies have their limits in `connection`.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specserve.api.http.refusals import Refusal
from specserve.api.http.staying_parser import StayingParser

HEAD_S = 10.0  # from a connection, or from a request's first byte, to the end of its headers
MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 100

_NO_HTTP = Refusal(message="the request is no HTTP", type="invalid_request_error", code=400)
_TOO_LARGE = Refusal(
    message=f"headers: the limits are {MAX_HEADERS} of them and {MAX_HEAD_BYTES} bytes in all",
    type="invalid_request_error",
    code=431,
)
_TOO_SLOW = Refusal(
    message=f"headers: did not end within {HEAD_S:g} s", type="timeout_error", code=408
)
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class _HeadTooLarge(Exception):
    """The parser ends with it."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    parser: StayingParser  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **named)
        self.parser = StayingParser(self)
        self._deadline: asyncio.TimerHandle | None = None  # until the next head is whole
        self._is_in_head = False
        self._num_bytes = 0  # of the head, as far as it is read
        self._num_unread = 0  # of pieces that came without ending it
        self._is_too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        # Of a connection that its client has reset uvicorn (0.54) keeps the timer that would close
        # it when it has been idle for long, and with the timer all that the connection holds.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and was_in_head:
            # The parser keeps a header to itself until it is whole.
            self._num_unread += len(data)
            if self._num_unread > MAX_HEAD_BYTES:
                self._refuse(_TOO_LARGE)
        elif self._is_between_requests and self._deadline is None:
            self._await_head()  # what came is no request, and ended uvicorn's own wait for one

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_bytes = self._num_unread = 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.is_offer:
            return
        self._is_in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.is_offer:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Whatever the parser cannot read."""
        self._refuse(_TOO_LARGE if self._is_too_large else _NO_HTTP)

    @property
    def _is_between_requests(self) -> bool:
        is_answered = not self.cycle or self.cycle.response_complete  # none before the first
        return is_answered and self.timeout_keep_alive_task is None

    def _count(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if self._num_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            self._is_too_large = True
            raise _HeadTooLarge

    def _await_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._is_in_head:
            self._refuse(_TOO_SLOW)
        else:  # where nothing was asked, an answer would be taken for that to the next request
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """There is no request yet that an application could answer."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        head = b"HTTP/1.1 %d %s\r\n" % (refusal.code, _REASONS[refusal.code])
        head += b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: %d\r\n\r\n" % len(refusal.body)
        self.transport.write(head + refusal.body)
        self.transport.close()
