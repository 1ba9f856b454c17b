"""Errors of ours as gRPC statuses, in one place. What is not ours becomes an opaque INTERNAL."""

import asyncio
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from specserve.api.malformed import Malformed
from specserve.errors import Busy, Failed, Leaving, SpecserveError

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext
_ResultT = TypeVar("_ResultT")
_ServicerT = TypeVar("_ServicerT")


def refusal_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and text for a client. The text of a defect stays in the log, under an incident id."""
    if isinstance(error, SpecserveError) and (
        error.code != "INTERNAL" or isinstance(error, Failed)
    ):
        return grpc.StatusCode[error.code], " ".join(str(error).split())
    incident = secrets.token_hex(4)
    log.error("incident %s", incident, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"internal error; see the server's log, incident {incident}"


async def abort_with(context: Context, error: Exception) -> NoReturn:
    """End the call with the status that fits."""
    code, text = refusal_of(error)
    if context.done():  # the caller has left, and nobody hears
        raise asyncio.CancelledError from error
    wait = (("retry-after", str(error.retry_after_s)),) if isinstance(error, Busy | Leaving) else ()
    try:
        await context.abort(code, text, wait)
    except grpc.aio.InternalError as gone:  # it has left meanwhile
        raise asyncio.CancelledError from gone
    raise AssertionError("abort returned")


def with_status(
    method: Callable[[_ServicerT, Any, Context], Awaitable[_ResultT]],
) -> Callable[[_ServicerT, Any, Context], Awaitable[_ResultT]]:
    """A servicer method whose errors become statuses; cancellation passes through."""

    @functools.wraps(method)
    async def answer(servicer: _ServicerT, request: Any, context: Context) -> _ResultT:  # noqa: ANN401
        try:
            if isinstance(request, Malformed):
                raise request.error
            return await method(servicer, request, context)
        except Exception as error:  # noqa: BLE001 - the boundary: nothing may leave untranslated
            await abort_with(context, error)

    return answer
