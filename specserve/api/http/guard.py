# pyright: strict
"""What stands before all paths of the HTTP front end: keys, or without them known hosts.

Paths are compared as the router compares them, character by character, and all but the probes and
the empty page need a key: a path in other clothes is at worst one that there is not.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from specserve.api.http.connection import refuse_unread
from specserve.api.http.hosts import KnownHosts
from specserve.api.http.refusals import refusal_of
from specserve.api.keys import STRANGER, Keys, caller
from specserve.errors import Forbidden, Unauthenticated

# What balancers ask, who have no key, and a page that knows nothing until it is given one.
PUBLIC = frozenset({"/", "/health", "/livez", "/readyz"})
# What balancers and collectors ask by whatever name or address they have found.
PROBES = frozenset({"/health", "/livez", "/metrics", "/readyz"})
_HEADER = b"authorization"


class KeyRequired:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What serves the request runs in this task, or in tasks that this one begins.
        caller.set(STRANGER)
        if scope["path"] not in PUBLIC:
            try:
                caller.set(self._keys.tenant_of(_authorization(scope)))
            except Unauthenticated as error:
                await refuse_unread(refusal_of(error), receive, send)
                return
        await self._app(scope, receive, send)


class KnownHostRequired:
    """An ASGI application in front of another one that asks nobody for a key."""

    def __init__(self, app: ASGIApp, hosts: KnownHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in PROBES:
            try:
                await self._hosts.require(scope["headers"])
            except Forbidden as error:
                await refuse_unread(refusal_of(error), receive, send)
                return
        await self._app(scope, receive, send)


def _authorization(scope: Scope) -> bytes | None:
    """The one there is: of several, nobody could say which is meant."""
    found = [value for name, value in scope["headers"] if name == _HEADER]
    return found[0] if len(found) == 1 else None
