"""Whether gateways are served, which takes a package of theirs: its messages, made from its schema.

Without it the port has our own services alone, and whoever calls a gateway's method is told what to
install. All that knows the messages is imported here, and only where they are.
"""

import importlib.util
import logging

import grpc
import grpc.aio
from google.protobuf.runtime_version import VersionError

from specserve.api.service import Service
from specserve.api.status import Context

log = logging.getLogger(__name__)

NAME = "vllm.grpc.engine.VllmEngine"
PACKAGE = "smg_grpc_proto"
_INSTALL = "pip install 'specserve[gateway]'"
_METHODS = (
    "Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads", "GetTokenizer",
    "Embed", "FlushCache", "StartProfile", "StopProfile", "SubscribeKvEvents",
)  # fmt: skip


def offered() -> tuple[str, ...]:
    """Names of the services that `add_to` will add: the gateways', or none."""
    return (NAME,) if why_not() is None else ()


def why_not() -> str | None:
    """What keeps gateways from being served, and what to type; None: nothing."""
    if importlib.util.find_spec(PACKAGE) is None:
        return f"{NAME} needs the package smg-grpc-proto; install it with: {_INSTALL}"
    try:
        import smg_grpc_proto.generated.vllm_engine_pb2_grpc  # noqa: F401
    except (ImportError, RuntimeError, VersionError) as error:  # made for another grpc or protobuf
        return f"{NAME}: the installed smg-grpc-proto is of no use ({error}); {_INSTALL}"
    return None


def add_to(server: grpc.aio.Server, service: Service) -> None:
    """Serve gateways, or refuse every method of theirs with the reason."""
    if (reason := why_not()) is not None:
        log.info("%s", reason)
        _add_refusals(server, reason)
        return
    from specserve.api.gateway.servicer import add_servicer

    add_servicer(service, server)


def _add_refusals(server: grpc.aio.Server, reason: str) -> None:
    async def refuse(_requests: object, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)

    # A method of any kind, to a client: it ends the call and reads no message.
    handler = grpc.stream_stream_rpc_method_handler(refuse)
    handlers = dict.fromkeys(_METHODS, handler)
    server.add_registered_method_handlers(NAME, handlers)  # pyright: ignore[reportAttributeAccessIssue]
