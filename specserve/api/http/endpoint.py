# pyright: strict
"""A path that takes a body and generates: the body within its limits, a place, the refusals.

Knows no kind of body. What is asked for, and how it is answered, is a subclass's.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from specserve.api.call import GenerateCall
from specserve.api.http.bodies import CHATS, Body, Reading, read_body
from specserve.api.http.connection import (
    Gone,
    Reply,
    read_content,
    refuse_unread,
    unless_gone,
    warning_of,
)
from specserve.api.http.refusals import Refused, refusal_of
from specserve.api.service import Service
from specserve.api.tracing import trace_context

_LARGE_BYTES = 64 * 1024  # of a body that takes longer than a millisecond to read

Checked = TypeVar("Checked")


class BodyEndpoint(ABC, Generic[Body, Checked]):
    """An ASGI application for one path."""

    kind: type[Body]
    reading: Reading = CHATS

    def __init__(self, service: Service, *, is_lenient: bool) -> None:
        self.service = service
        self._is_lenient = is_lenient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            content = await read_content(scope, receive, self.service.max_message_bytes)
        except Gone:
            return
        except Refused as error:
            self.service.refused(error.code)
            await refuse_unread(error.refusal, receive, send)
            return
        await unless_gone(receive, self._answer(scope, content, send))

    async def _answer(self, scope: Scope, content: bytes, send: Send) -> None:
        reply = Reply(send)
        try:
            with self.service.before_session():
                self.service.require_place()  # nothing is parsed or encoded for who finds none
                body, ignored = await self._read(content)
                reply = Reply(send, warning_of(ignored))
                checked = await self.checked(body)
            await self.serve(checked, scope, reply)
        except Exception as error:  # noqa: BLE001 - the boundary: nothing may leave untranslated
            await reply.refuse(refusal_of(self.as_sent(error)))

    async def _read(self, content: bytes) -> tuple[Body, list[str]]:
        """As `read_body`, and elsewhere where that takes long."""

        def read() -> tuple[Body, list[str]]:
            lenient = self._is_lenient
            return read_body(content, self.kind, is_lenient=lenient, reading=self.reading)

        is_large = len(content) > _LARGE_BYTES
        return await self.service.tokenizer.off_loop(read) if is_large else read()

    @abstractmethod
    async def checked(self, body: Body) -> Checked:
        """What is to be served for `body`. Raises the SpecserveError that refuses it."""

    @abstractmethod
    async def serve(self, checked: Checked, scope: Scope, reply: Reply) -> None:
        """Answer it. What is raised is its refusal, within a stream that has begun as well."""

    def as_sent(self, error: Exception) -> Exception:
        """`error` by the names that fields have in bodies of this kind."""
        return error


def within_traces(calls: Sequence[GenerateCall], scope: Scope) -> list[GenerateCall]:
    """The same calls, below the span that the request's headers name."""
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    trace = trace_context(headers)
    return [msgspec.structs.replace(call, trace=trace) for call in calls]
