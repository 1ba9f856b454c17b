"""What generating methods of every gRPC service share: a call's session, and its slow reader.

Knows no message of any of them.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from specserve.api.call import GenerateCall
from specserve.api.events import Event
from specserve.api.malformed import Malformed
from specserve.api.service import Service
from specserve.api.status import Context
from specserve.api.tracing import trace_context
from specserve.errors import Exhausted

# That a client takes nothing of its stream, whose request then ends, as the kernel ends it over
# HTTP: while what is to be sent waits, the request has its place.
_UNREAD_S = 30.0


class _OfService(Protocol):
    service: Service


_ServicerT = TypeVar("_ServicerT", bound=_OfService)
_ResultT = TypeVar("_ResultT")


def counting_malformed(
    method: Callable[[_ServicerT, Any, Context], Awaitable[_ResultT]],
) -> Callable[[_ServicerT, Any, Context], Awaitable[_ResultT]]:
    """`method`, which refuses what is no message and has no session that would count it."""

    @functools.wraps(method)
    async def answer(servicer: _ServicerT, request: Any, context: Context) -> _ResultT:  # noqa: ANN401
        if isinstance(request, Malformed):
            servicer.service.refused(request.error.code)
        return await method(servicer, request, context)

    return answer


def events_of(
    service: Service, context: Context, make_call: Callable[[float | None], GenerateCall]
) -> AsyncGenerator[Event]:
    """The events of the session that a call asks for; what it does not admit is raised, counted.

    `make_call` is told how many seconds the caller waits; None: without end.
    """
    with service.before_session():
        call = make_call(context.time_remaining())
    if service.tracer is not None:
        metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        call = msgspec.structs.replace(call, trace=trace_context(metadata))
    return service.session(call).stream()


async def taken(writing: Awaitable[None]) -> None:
    """Wait for a part of a stream to be sent. Raises Exhausted where its reader takes nothing."""
    try:
        async with asyncio.timeout(_UNREAD_S):
            await writing
    except TimeoutError as error:
        raise Exhausted(f"stream: nothing of it was taken for {_UNREAD_S:g} s") from error
