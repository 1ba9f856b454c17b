# pyright: strict
"""Who asks: API keys as the front ends check them, and the tenant that a key stands for.

A request without a key that is known gets no further than its front end, which asks `Keys` for
everything but probes. What is behind reads `caller` and never sees a key.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from specserve.errors import Forbidden, InvalidField, Unauthenticated
from specserve.settings.key_file import ApiKey, read_keys

log = logging.getLogger(__name__)

ADMIN = "admin"  # the name of keys that may drain and profile
_SETTING = "server.api_key_file"
_SCHEME = b"bearer "
_MISSING = (
    "api key: is missing; send the header Authorization: Bearer KEY "
    "(our commands: --api-key-file FILE)"
)
_LOOK_S = 1.0  # a changed file is noticed so late at most


class Tenant(NamedTuple):
    """On whose behalf a request is served; keys of one name are one tenant."""

    identity: str  # what caches and limits tell tenants apart by; empty: there are no keys
    shown: str  # in messages
    is_admin: bool


NOBODY = Tenant("", "", is_admin=True)  # who asks where there are no keys
STRANGER = Tenant("stranger", "of nobody", is_admin=False)  # ... and without one where there are
# Set by the front end in the task of a request, which all that serves it inherits; and so does the
# next request of its connection, so whatever asks for keys sets it for every request.
caller: ContextVar[Tenant] = ContextVar("caller", default=NOBODY)


class Keys:
    """The keys of one file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidField for a file that is none of keys."""
        self._path = path
        # Tenants without a name are told apart by their keys, under a secret: what is derived from
        # a key says nothing about it.
        self._secret = secrets.token_bytes(32)
        self._signature, self._looked_s = self._look(), time.monotonic()
        self._known = self._read()

    def tenant_of(self, authorization: bytes | None) -> Tenant:
        """Whose key a header `Authorization: Bearer KEY` has. Raises Unauthenticated.

        Takes equally long whichever key it is, and however much of one is right.
        """
        if authorization is None:
            raise Unauthenticated(_MISSING)
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("api key: the header has to be Authorization: Bearer KEY")
        self._refresh()
        given = self._digest(authorization[len(_SCHEME) :].strip())
        found = None
        for digest, tenant in self._known:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise Unauthenticated("api key: is not known here")
        return found

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")

    def _read(self) -> list[tuple[bytes, Tenant]]:
        return [self._entry(each) for each in read_keys(self._path, _SETTING)]

    def _entry(self, given: ApiKey) -> tuple[bytes, Tenant]:
        digest = self._digest(given.key.encode())
        # No name has a colon before it, so no name is the identity of a key without one.
        identity = f"name:{given.name}" if given.name else f"key:{digest.hex()}"
        return digest, Tenant(identity, given.shown, given.name == ADMIN)

    def _refresh(self) -> None:
        """A file that cannot be read leaves the keys as they were, and is told once."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        if (signature := self._look()) == self._signature:
            return
        self._signature = signature
        try:
            self._known = self._read()
        except InvalidField as error:
            log.error("the keys stay as they were: %s", error)
        else:
            log.info("%s: %d keys", _SETTING, len(self._known))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ctime_ns, found.st_ino, found.st_size


def require_admin() -> None:
    """Raises Forbidden unless the caller may stop and watch the service for all tenants."""
    if not caller.get().is_admin:
        raise Forbidden(f"api key: is none of an operator; name one {ADMIN!r} in {_SETTING}")


def salt_of(tenant: Tenant, cache_salt: str) -> str:
    """Of prefix blocks: no two tenants share any, whatever salts they choose."""
    if not tenant.identity:
        return cache_salt
    return hashlib.sha256(f"{tenant.identity}\n{cache_salt}".encode()).hexdigest()
