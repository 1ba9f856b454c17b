# pyright: strict
"""One HTTP exchange as ASGI has it: the body within its limit, the answer, and who leaves early."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from specserve.api.http.refusals import Refusal, Refused, encoded, too_large, too_slow

_JSON = {"content-type": "application/json"}
_EVENTS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # of proxies, which would hold pieces back
}
WARNING = "x-specserve-warning"  # what a lenient service has left out of a request
_MAX_WARNING_CHARS = 512
BODY_S = 60.0  # for a whole body
_LINGER_S = 1.0  # that bodies are thrown away for, behind an answer that they were not needed for
# Bodies are kept in pieces of this size at least, however small those are that come. A single one
# that grows to megabytes is moved time and again, and leaves the heap in shreds.
_PIECE_BYTES = 64 * 1024
_DONE = b"data: [DONE]\n\n"
# Ends of lines to Unicode, and so to clients that take an answer's lines from its text; to events
# they are none. In UTF-8, and as JSON may have them.
_LINE_ENDS = (
    (b"\xc2\x85", rb"\u0085"),
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
)


class Gone(Exception):
    """The client has left."""


async def read_content(scope: Scope, receive: Receive, limit: int) -> bytes:
    """All of the body.

    Raises Refused before more than `limit` bytes are held or it takes too long, and for one that is
    compressed; or Gone.
    """
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Refused(encoded(value.decode("latin-1")), "INVALID_ARGUMENT")
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise Refused(too_large(limit), "RESOURCE_EXHAUSTED")
    try:
        async with asyncio.timeout(BODY_S):
            return await _read(receive, limit)
    except TimeoutError as error:
        raise Refused(too_slow(BODY_S), "DEADLINE_EXCEEDED") from error


async def _read(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size, last = 0, bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise Refused(too_large(limit), "RESOURCE_EXHAUSTED")
        last += part
        if not message.get("more_body", False):
            return b"".join([*pieces, last])
        if len(last) >= _PIECE_BYTES:
            pieces.append(bytes(last))
            last.clear()


async def refuse_unread(refusal: Refusal, receive: Receive, send: Send) -> None:
    """Answer a request whose body nobody wants, and end its connection.

    A connection that is closed over what still comes takes the answer away from its reader, so that
    is thrown away for a moment.
    """
    headers = {**_JSON, **refusal.headers, "connection": "close"}
    headers["content-length"] = str(len(refusal.body))
    await send({"type": "http.response.start", "status": refusal.code, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; it is cancelled when the client leaves. After its body was read."""
    gone, doing = asyncio.create_task(_gone(receive)), asyncio.create_task(work)
    try:
        await asyncio.wait((gone, doing), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Reply:
    """What is sent back, once."""

    def __init__(self, send: Send, headers: Mapping[str, str] | None = None) -> None:
        """`headers`: of whatever is sent."""
        self._send = send
        self._headers = dict(headers or {})
        self.has_begun = False

    async def json(self, content: bytes, status: int = 200) -> None:
        """`content` is JSON already."""
        await self.content(content, status, _JSON)

    async def refuse(self, refusal: Refusal) -> None:
        """With a status, or within a stream that has begun."""
        if self.has_begun:
            await self.written(refusal.body)
            await self.end()
            return
        await self.content(refusal.body, refusal.code, _JSON | refusal.headers)

    async def content(self, content: bytes, status: int, headers: Mapping[str, str]) -> None:
        length = {"content-length": str(len(content))}
        await self._begin(status, {**headers, **length})
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def event(self, body: Any) -> None:  # noqa: ANN401 - what JSON holds
        """One event of a stream, which begins with the first."""
        await self.written(msgspec.json.encode(body))

    async def written(self, body: bytes, kind: str | None = None) -> None:
        """The same of JSON, under the name `kind` if it has one."""
        await self.begin_stream()
        for end, escaped in _LINE_ENDS:
            body = body.replace(end, escaped)
        name = b"" if kind is None else b"event: " + kind.encode() + b"\n"
        content = name + b"data: " + body + b"\n\n"
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def begin_stream(self) -> None:
        """Whose first event may be long in coming."""
        if not self.has_begun:
            await self._begin(200, _EVENTS)

    async def done(self) -> None:
        """The stream is over, as completions and chats end theirs."""
        await self._send({"type": "http.response.body", "body": _DONE, "more_body": False})

    async def end(self) -> None:
        """The stream is over, as its last event has said."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        raw = _raw({**headers, **self._headers})
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def warning_of(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names fields which a lenient service has left out; none without any."""
    if not ignored:
        return {}
    names = ", ".join(ascii(name)[1:-1] for name in ignored)  # a header is no more
    return {WARNING: f"ignored: {names[:_MAX_WARNING_CHARS]}"}
