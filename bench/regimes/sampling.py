# pyright: strict
"""Sampling fields of every request, as a bench's command line has them."""

from collections.abc import Sequence

from specserve.errors import InvalidField

SAMPLING_FIELDS = (
    "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def read_sampling(words: Sequence[str]) -> dict[str, float]:
    """Requests' own fields. Raises InvalidField."""
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in SAMPLING_FIELDS:
            raise InvalidField("--sampling", f"{name!r} is none of {', '.join(SAMPLING_FIELDS)}")
        try:
            found[name] = int(value) if name == "top_k" else float(value)
        except ValueError:
            raise InvalidField("--sampling", f"{word!r} is not of the form top_p=0.9") from None
    return found
