"""Requests whose bytes are no message: refused like any other, not logged as a defect.

gRPC decodes a request before any method of ours runs, and would answer UNKNOWN with a traceback in
the log for each.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from specserve.errors import InvalidField

_Decode = Callable[[bytes], object]


class Malformed:
    """Stands for a request that could not be decoded."""

    @property
    def error(self) -> InvalidField:
        """A new one each time: one that is raised again and again keeps all that it passed."""
        return InvalidField("request", "is malformed protobuf, or a string in it is not UTF-8")


class MalformedRequests(grpc.aio.ServerInterceptor):
    """Refuses what cannot be decoded instead of failing for it.

    Methods of ours get a `Malformed`; calls of `standard` services, which know none, end here.
    """

    def __init__(self, services: tuple[str, ...], standard: tuple[str, ...] = ()) -> None:
        self._prefixes = tuple(f"/{service}/" for service in services)
        self._standard_prefixes = tuple(f"/{service}/" for service in standard)

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,  # noqa: ANN401 - as grpc types neither
    ) -> Any:  # noqa: ANN401
        """The method that answers; None where there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler_call_details.method.startswith(self._prefixes):
            return _decoding(handler, handler.unary_unary, handler.unary_stream)
        if handler_call_details.method.startswith(self._standard_prefixes):
            return _refusing(handler)
        return handler


def _decoding(handler: Any, unary_unary: Any, unary_stream: Any) -> Any:  # noqa: ANN401
    """`handler` with other methods, which get a `Malformed` for what is no message."""
    decode, encode = _forgiving(handler.request_deserializer), handler.response_serializer
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(unary_stream, decode, encode)
    return grpc.unary_unary_rpc_method_handler(unary_unary, decode, encode)


def _refusing(handler: Any) -> Any:  # noqa: ANN401 - as grpc types it
    """`handler`, whose calls end where something in them is no message."""
    if handler.request_streaming:  # reflection's
        decode, encode = _forgiving(handler.request_deserializer), handler.response_serializer
        method = _refusing_any(handler.stream_stream)
        return grpc.stream_stream_rpc_method_handler(method, decode, encode)
    return _decoding(
        handler, _refusing_one(handler.unary_unary), _refusing_one(handler.unary_stream)
    )


def _refusing_one(method: Any) -> Any:  # noqa: ANN401 - as grpc types it
    async def answer(request: object, context: Any) -> object:  # noqa: ANN401
        if isinstance(request, Malformed):
            await _refuse(request, context)
        return await method(request, context)

    return answer


def _refusing_any(method: Any) -> Any:  # noqa: ANN401 - as grpc types it
    # grpc tells by the kind of function that it is to be iterated over.
    async def answer(requests: Any, context: Any) -> AsyncGenerator[object]:  # noqa: ANN401
        async for response in method(_sound(requests, context), context):
            yield response

    return answer


async def _sound(requests: Any, context: Any) -> AsyncGenerator[object]:  # noqa: ANN401
    async for request in requests:
        if isinstance(request, Malformed):
            await _refuse(request, context)
        yield request


async def _refuse(request: Malformed, context: Any) -> None:  # noqa: ANN401
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(request.error))


def _forgiving(decode: _Decode) -> _Decode:
    def decode_or_mark(data: bytes) -> object:
        try:
            return decode(data)
        except DecodeError:
            return Malformed()

    return decode_or_mark
