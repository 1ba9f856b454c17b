# pyright: strict
"""Errors of ours as HTTP statuses and as bodies in OpenAI's form, in one place."""

import logging
import secrets

import msgspec

from specserve.errors import (
    Busy,
    Failed,
    InvalidField,
    Leaving,
    NotFound,
    SpecserveError,
    Unauthenticated,
)

log = logging.getLogger(__name__)

# By gRPC status name, which is how errors are told apart inside; and what OpenAI calls the kind.
_STATUSES = {
    "INVALID_ARGUMENT": (400, "invalid_request_error"),
    "FAILED_PRECONDITION": (400, "invalid_request_error"),
    "UNAUTHENTICATED": (401, "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error"),
    "NOT_FOUND": (404, "not_found_error"),
    "DEADLINE_EXCEEDED": (408, "timeout_error"),
    "CANCELLED": (499, "cancelled_error"),  # as proxies say of requests that their client ended
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error"),
    "UNAVAILABLE": (503, "service_unavailable_error"),
    "INTERNAL": (500, "server_error"),
}
_DEFECT = (500, "server_error")
_TOO_LATE = 408
_WRONG_ENCODING = 415
# What bodies call the fields that are named otherwise inside, where they do.
_OF_BODIES = {"chat": "messages", "token_ids": "prompt"}
_CHAT = "chat."  # of gRPC's requests, whose messages stand within it


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The `error` of a body."""

    message: str
    type: str
    param: str | None = None  # the field that is to blame
    code: int = 500  # the HTTP status, as in vLLM
    retry_after_s: int | None = None
    challenge: str | None = None  # how to say who asks

    @property
    def body(self) -> bytes:
        error = {name: getattr(self, name) for name in ("message", "type", "param", "code")}
        return msgspec.json.encode({"error": error})

    @property
    def headers(self) -> dict[str, str]:
        after_s = None if self.retry_after_s is None else str(self.retry_after_s)
        # OpenAI's clients try what took too long again, and it would be decoded three times.
        again = "false" if self.code == _TOO_LATE else None
        found = {
            "retry-after": after_s,
            "www-authenticate": self.challenge,
            "x-should-retry": again,
            "accept-encoding": "identity" if self.code == _WRONG_ENCODING else None,
        }
        return {name: value for name, value in found.items() if value is not None}


class Refused(Exception):
    """With an answer that is no error of ours."""

    def __init__(self, refusal: Refusal, code: str) -> None:
        """`code`: the gRPC status name of the like."""
        super().__init__(refusal.message)
        self.refusal, self.code = refusal, code


def refusal_of(error: Exception) -> Refusal:
    """For a client. The text of a defect stays in the log, under an incident id."""
    if isinstance(error, InvalidField):
        field = error.field.removeprefix(_CHAT)
        error = InvalidField(_OF_BODIES.get(field, field), error.problem)
    if isinstance(error, SpecserveError) and (
        error.code != "INTERNAL" or isinstance(error, Failed)
    ):
        status, kind = _STATUSES.get(error.code, _DEFECT)
        return Refusal(
            message=" ".join(str(error).split()),
            type=kind,
            param=_field_of(error),
            code=status,
            retry_after_s=error.retry_after_s if isinstance(error, Busy | Leaving) else None,
            challenge="Bearer" if isinstance(error, Unauthenticated) else None,
        )
    incident = secrets.token_hex(4)
    log.error("incident %s", incident, exc_info=error)
    message = f"internal error; see the server's log, incident {incident}"
    return Refusal(message=message, type="server_error")


def _field_of(error: SpecserveError) -> str | None:
    return error.field if isinstance(error, InvalidField | NotFound) else None


def too_slow(limit_s: float) -> Refusal:
    """A body that did not end within that."""
    message = f"body: did not end within {limit_s:g} s"
    return Refusal(message=message, type="timeout_error", param="body", code=408)


def too_large(limit: int) -> Refusal:
    """A body of more bytes than that."""
    message = f"body: is larger than the limit of {limit} bytes"
    return Refusal(message=message, type="invalid_request_error", param="body", code=413)


def encoded(how: str) -> Refusal:
    """A body that is compressed: a few bytes of it could become gigabytes."""
    message = (
        f"content-encoding: {how[:64]!r} is not read here; send the body as plain JSON, without "
        "that header"
    )
    return Refusal(
        message=message,
        type="invalid_request_error",
        param="content-encoding",
        code=_WRONG_ENCODING,
    )
