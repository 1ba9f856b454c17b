# pyright: strict
"""Errors of ours as HTTP statuses and as bodies in OpenAI's form, in one place."""

import logging
import secrets

import msgspec

from specserve.errors import Busy, Failed, InvalidField, SpecserveError

log = logging.getLogger(__name__)

# By gRPC status name, which is how errors are told apart inside; and what OpenAI calls the kind.
_STATUSES = {
    "INVALID_ARGUMENT": (400, "invalid_request_error"),
    "FAILED_PRECONDITION": (400, "invalid_request_error"),
    "NOT_FOUND": (404, "not_found_error"),
    "DEADLINE_EXCEEDED": (408, "timeout_error"),
    "CANCELLED": (499, "cancelled_error"),  # as proxies say of requests that their client ended
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error"),
    "UNAVAILABLE": (503, "service_unavailable_error"),
    "INTERNAL": (500, "server_error"),
}
_DEFECT = (500, "server_error")


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The `error` of a body."""

    message: str
    type: str
    param: str | None = None  # the field that is to blame
    code: int = 500  # the HTTP status, as in vLLM
    retry_after_s: int | None = None

    @property
    def body(self) -> bytes:
        error = {name: getattr(self, name) for name in ("message", "type", "param", "code")}
        return msgspec.json.encode({"error": error})

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


def refusal_of(error: Exception) -> Refusal:
    """For a client. The text of a defect stays in the log, under an incident id."""
    if isinstance(error, SpecserveError) and (
        error.code != "INTERNAL" or isinstance(error, Failed)
    ):
        status, kind = _STATUSES.get(error.code, _DEFECT)
        return Refusal(
            message=" ".join(str(error).split()),
            type=kind,
            param=error.field if isinstance(error, InvalidField) else None,
            code=status,
            retry_after_s=error.retry_after_s if isinstance(error, Busy) else None,
        )
    incident = secrets.token_hex(4)
    log.error("incident %s", incident, exc_info=error)
    message = f"internal error; see the server's log, incident {incident}"
    return Refusal(message=message, type="server_error")


def too_large(limit: int) -> Refusal:
    """A body of more bytes than that."""
    message = f"body: is larger than the limit of {limit} bytes"
    return Refusal(message=message, type="invalid_request_error", param="body", code=413)
