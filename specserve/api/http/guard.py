# pyright: strict
"""What stands before all paths of the HTTP front end: keys, and what nobody foresaw.

Paths are compared as the router compares them, character by character, and all but the probes and
the empty page need a key: a path in other clothes is at worst one that there is not.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from specserve.api.http.connection import refuse_unread
from specserve.api.http.refusals import refusal_of
from specserve.api.keys import STRANGER, Keys, caller
from specserve.errors import Unauthenticated

# What balancers ask, who have no key, and a page that knows nothing until it is given one.
PUBLIC = frozenset({"/", "/health", "/livez", "/readyz"})
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


def _authorization(scope: Scope) -> bytes | None:
    """The one there is: of several, nobody could say which is meant."""
    found = [value for name, value in scope["headers"] if name == _HEADER]
    return found[0] if len(found) == 1 else None
