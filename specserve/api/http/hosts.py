# pyright: strict
"""By which names a service without keys is known, so that no web page can use it.

A page sends what it likes to whatever its reader's machine can reach, and reads the answers where
its own name leads there (DNS rebinding). Only a browser tells: it names the host that it believes
to ask in `Host`, and the page's in `Origin`. An address in `Host` is no page's name; a name may be.
"""

import asyncio
import socket
from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from specserve.errors import Forbidden
from specserve.settings.door import ANY_HOST, is_address, is_host_name

# Nobody can have such a name, or one without a dot, to lead a page's reader here: containers and
# local networks have them.
_PRIVATE = (".localhost", ".local", ".internal")
_PORTS = {"http": 80, "https": 443}  # of origins that name none


class _Place(NamedTuple):
    """Of a URL. Nothing that is known has the name ""."""

    host: str
    port: int | None
    scheme: str = ""


class KnownHosts:
    """Of one service."""

    def __init__(self, allowed: Collection[str]) -> None:
        """`allowed`: names and addresses besides those of this machine; or `ANY_HOST`."""
        self._allowed = frozenset(allowed)
        self._machine = socket.gethostname().lower()
        self._full_machine: str | None = None  # with its domain; not looked up before it is asked

    async def require(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise Forbidden, which says what to launch with, for what a stranger's page may send."""
        if ANY_HOST in self._allowed:
            return
        found = list(headers)
        asked = [_place_of(f"//{value}") for value in _values(found, b"host")]
        for place in asked:
            if not await self._is_ours(place.host):
                raise _refusal("Host", place.host, "is no name that this service is known by")
        for origin in map(_place_of, _values(found, b"origin")):
            usual = _PORTS.get(origin.scheme)
            own = {(place.host, place.port or usual) for place in asked}
            is_own = (origin.host, origin.port or usual) in own
            if not is_own and origin.host not in self._allowed:
                raise _refusal("Origin", origin.host, "is a web page of another place")

    async def _is_ours(self, host: str) -> bool:
        is_private = is_host_name(host) and ("." not in host or host.endswith(_PRIVATE))
        if is_private or host in (self._machine, *self._allowed) or is_address(host):
            return True
        if not host.startswith(f"{self._machine}."):
            return False
        if self._full_machine is None:  # a resolver may take seconds
            self._full_machine = (await asyncio.to_thread(socket.getfqdn)).lower()
        return host == self._full_machine


def _refusal(header: str, host: str, problem: str) -> Forbidden:
    shown = host if is_host_name(host) else "NAME"
    return Forbidden(
        f"{header}: {host[:64]!r} {problem}; where it should be, launch with --allowed-hosts "
        f"{shown[:64]}, or with --api-key-file FILE"
    )


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for each, value in headers if each == name]


def _place_of(url: str) -> _Place:
    """Its host in small letters; "" where there is none, as in the origin `null`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return _Place("", None)
    return _Place(host.removesuffix("."), port, parts.scheme)
