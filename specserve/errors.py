"""Errors a user can mend. Each names the field, what is wrong and the limit, on one line."""


class SpecserveError(Exception):
    """Base of every error that carries a message for the user; `code` is the gRPC status name."""

    code = "INTERNAL"


class InvalidField(SpecserveError):
    """A request or a setting holds a value that is never acceptable."""

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Unsupported(SpecserveError):
    """A valid wish that this model, machine or configuration cannot meet."""

    code = "FAILED_PRECONDITION"


class Exhausted(SpecserveError):
    """Too much was asked for at once, or not enough memory is there."""

    code = "RESOURCE_EXHAUSTED"


class Busy(Exhausted):
    """No room now: there should be some after `retry_after_s` whole seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(SpecserveError):
    """The service is draining or gone."""

    code = "UNAVAILABLE"


class Leaving(Unavailable):
    """The service takes no more, and is gone in `retry_after_s` whole seconds at the latest."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotFound(SpecserveError):
    """What is named is not here; `field` names it, which is the model unless a subclass says so."""

    code = "NOT_FOUND"
    field = "model"


class Unauthenticated(SpecserveError):
    """The request has no API key that is known."""

    code = "UNAUTHENTICATED"


class Forbidden(SpecserveError):
    """Whoever asks may not: by a key that is not one for this, or by an unknown host."""

    code = "PERMISSION_DENIED"


class Failed(SpecserveError):
    """The service or its model failed; the text, unlike that of a defect, is meant for users."""


class Cancelled(SpecserveError):
    """The request was aborted before it finished."""

    code = "CANCELLED"


class DeadlineExceeded(SpecserveError):
    """The caller's deadline passed before the request finished."""

    code = "DEADLINE_EXCEEDED"


_KINDS: dict[str, type[SpecserveError]] = {
    kind.code: kind
    for kind in (
        Unsupported, Exhausted, Unavailable, NotFound, Unauthenticated, Forbidden, Failed,
        Cancelled, DeadlineExceeded,
    )
}  # fmt: skip


def from_code(code: str, message: str) -> SpecserveError:
    """The error that travelled as a gRPC status name and its one-line text."""
    if code == InvalidField.code:
        field, _, problem = message.partition(": ")
        return InvalidField(field, problem)
    return _KINDS.get(code, SpecserveError)(message)
