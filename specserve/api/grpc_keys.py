"""Callers without a key get no method of the gRPC API but `grpc.health.v1`, not even its names."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from specserve.api import health
from specserve.api.keys import STRANGER, Keys, caller
from specserve.api.status import Context, abort_with
from specserve.errors import Unauthenticated

_HEADER = "authorization"


class KeyRequired(grpc.aio.ServerInterceptor):
    """Looks at a call's metadata before its method is looked up, and before its message is read."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,  # noqa: ANN401 - as grpc types neither
    ) -> Any:  # noqa: ANN401
        """The method that answers; None where there is none."""
        # The method runs in this very task, and so sees who calls.
        caller.set(STRANGER)
        if handler_call_details.method.rpartition("/")[0] == f"/{health.NAME}":
            return await continuation(handler_call_details)
        try:
            caller.set(self._keys.tenant_of(_authorization(handler_call_details)))
        except Unauthenticated as error:
            return _refusing(error)
        return await continuation(handler_call_details)


def _authorization(details: Any) -> bytes | None:  # noqa: ANN401
    """The one there is: of several, nobody could say which is meant."""
    found = [value for name, value in details.invocation_metadata or () if name == _HEADER]
    if len(found) != 1:
        return None
    return found[0] if isinstance(found[0], bytes) else found[0].encode()


def _refusing(error: Unauthenticated) -> Any:  # noqa: ANN401
    """A method of any kind, to a client: it ends the call and reads no message."""

    async def refuse(_requests: object, context: Context) -> None:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
