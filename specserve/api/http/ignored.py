# pyright: strict
"""How an answer says what a lenient service has left out of its request."""

from collections.abc import Sequence

WARNING = "x-specserve-warning"
_MAX_CHARS = 512


def warning_of(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names these fields; none where there are none."""
    if not ignored:
        return {}
    names = ", ".join(ascii(name)[1:-1] for name in ignored)  # a header is no more
    return {WARNING: f"ignored: {names[:_MAX_CHARS]}"}
