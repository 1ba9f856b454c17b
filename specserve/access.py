"""How a client gets in: the address of a service, a key, and whom it trusts to be that service.

Makes gRPC channels; knows no methods.
"""

import functools
import queue
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
import msgspec

from specserve.errors import InvalidField

PUBLIC = "public"  # certificate authorities: those that gRPC comes with
_CONNECT_TIMEOUT_S = 10.0
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
# Prompt logprobs and long answers exceed gRPC's default of 4 MiB.
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
# What gRPC says where there never was a connection; a service that answers says nothing like it.
_UNREACHED = re.compile(
    r"(failed to connect to all addresses; .*\bipv[46]:|errors resolving )"
    r"(?P<place>\S+): (Failed to connect to remote host: )?(?P<why>.*)",
    re.DOTALL,
)
_USUAL_PORT = "7411"

_ChannelT = TypeVar("_ChannelT")


class Access(msgspec.Struct, frozen=True):
    """One service, to one client of it."""

    address: str  # host:port
    api_key: str | None = None  # sent with every call
    # PEM file of the certificates that vouch for the service's, or that one itself, or PUBLIC.
    # None: the connection is not encrypted.
    tls_ca: str | None = None

    def __repr__(self) -> str:
        """Without the key, for logs and tracebacks."""
        return f"Access({self.address!r})"

    def channel(self) -> "KeyedChannel[grpc.Channel]":
        """Raises InvalidField for a file that cannot be read."""
        if (trust := self._trust()) is None:
            channel = grpc.insecure_channel(self.address, options=_OPTIONS)
        else:
            channel = grpc.secure_channel(self.address, trust, options=_OPTIONS)
        return KeyedChannel(channel, self.api_key)

    def aio_channel(self) -> "KeyedChannel[grpc.aio.Channel]":
        """The same for asyncio."""
        if (trust := self._trust()) is None:
            channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(self.address, trust, options=_OPTIONS)
        return KeyedChannel(channel, self.api_key)

    def _trust(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca is None:
            return None
        if self.tls_ca == PUBLIC:
            return grpc.ssl_channel_credentials()
        try:
            content = Path(self.tls_ca).read_bytes()
        except OSError as error:
            problem = f"cannot read {self.tls_ca}: {error.strerror}"
            raise InvalidField("tls_ca", problem) from error
        if _CERTIFICATE not in content:  # gRPC would say so in its own log, and try on
            raise InvalidField("tls_ca", f"{self.tls_ca} has no certificate; it must be a PEM file")
        return grpc.ssl_channel_credentials(content)


class KeyedChannel(Generic[_ChannelT]):
    """What stubs ask a channel for, every call with the key; `channel` is the one below."""

    def __init__(self, channel: _ChannelT, api_key: str | None) -> None:
        self.channel = channel
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

    def unary_unary(self, *words: Any, **named: Any) -> Callable[..., Any]:  # noqa: ANN401
        return self._keyed("unary_unary", *words, **named)

    def unary_stream(self, *words: Any, **named: Any) -> Callable[..., Any]:  # noqa: ANN401
        return self._keyed("unary_stream", *words, **named)

    def _keyed(self, kind: str, *words: Any, **named: Any) -> Callable[..., Any]:  # noqa: ANN401
        method = getattr(self.channel, kind)(*words, **named)
        return functools.partial(method, metadata=self._metadata)


def is_reachable(access: Access, timeout_s: float = _CONNECT_TIMEOUT_S) -> bool:
    """Whether gRPC answers, with TLS where that is wanted. A refusal is known at once."""
    ends = {grpc.ChannelConnectivity.READY: True, grpc.ChannelConnectivity.TRANSIENT_FAILURE: False}
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def follow(state: grpc.ChannelConnectivity) -> None:
        if state in ends:
            found.put(ends[state])

    with access.channel().channel as channel:
        channel.subscribe(follow, try_to_connect=True)
        try:
            return found.get(timeout=timeout_s)
        except queue.Empty:
            return False
        finally:
            channel.unsubscribe(follow)


def unreached(details: str) -> str | None:
    """What to do about a call that ended with gRPC's `details`, if nobody was there to answer.

    None for what a service has said itself.
    """
    if (found := _UNREACHED.match(details)) is None:
        return None
    place, why = unquote(found["place"]), " ".join(found["why"].split())
    port = place.rpartition(":")[2]
    flag = "" if port == _USUAL_PORT or not port.isdigit() else f" --port {port}"
    return (
        f"no service answers at {place} ({why}); start one with: specserve launch{flag}, or "
        "correct the address: that of gRPC, which launch prints last, and with tls_ca where it has "
        "TLS"
    )
