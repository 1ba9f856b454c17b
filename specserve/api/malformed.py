"""Requests whose bytes are no message: refused like any other, not logged as a defect.

gRPC decodes a request before any method of ours runs, and would answer UNKNOWN with a traceback in
the log for each.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from specserve.errors import InvalidField

_Decode = Callable[[bytes], object]


class Malformed:
    """Stands for a request that could not be decoded."""

    error = InvalidField("request", "is malformed protobuf, or a string in it is not UTF-8")


class MalformedRequests(grpc.aio.ServerInterceptor):
    """Gives methods of our services a `Malformed` instead of failing for them."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._prefixes = tuple(f"/{service}/" for service in services)

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,  # noqa: ANN401 - as grpc types neither
    ) -> Any:  # noqa: ANN401
        """The method that answers; None where there is none."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefixes):
            return handler
        decode = _forgiving(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                handler.unary_stream, decode, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            handler.unary_unary, decode, handler.response_serializer
        )


def _forgiving(decode: _Decode) -> _Decode:
    def decode_or_mark(data: bytes) -> object:
        try:
            return decode(data)
        except DecodeError:
            return Malformed()

    return decode_or_mark
