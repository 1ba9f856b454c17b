# pyright: strict
"""Counts and byte sizes as people write them: "60M", "512MiB". Knows nothing of what is counted."""

import re

from specserve.errors import InvalidField

_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_count(text: str, field: str = "count") -> int:
    """A count such as "60M", "1.5B", "250k" or "4096"; units are powers of 1000.

    Raises InvalidField naming `field`.
    """
    return _parse(text, _COUNT_UNITS, field, 'a count such as "60M" or "1.5B"')


def parse_bytes(text: str, field: str = "size") -> int:
    """A size in bytes such as "512MiB", "2GB", "1g" or "4096"; one-letter units are binary.

    Raises InvalidField naming `field`.
    """
    return _parse(text, _BYTE_UNITS, field, 'a size such as "512MiB" or "2GB"')


def format_count(count: int) -> str:
    """A count as people read it: 61234567 -> "61.2M"."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.1f}{unit}"
    return str(count)


def format_bytes(num_bytes: int) -> str:
    """A byte size as people read it: 536870912 -> "512.0 MiB"."""
    for limit, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.1f} {unit}"
    return f"{num_bytes} B"


def _parse(text: str, units: dict[str, int], field: str, wanted: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if re.match(r"\s*-\.?\d", text):
        raise InvalidField(field, f"{text!r} is negative; it must be {wanted}")
    if match is None or unit is None:
        raise InvalidField(field, f"{text!r} is not {wanted}")
    return round(float(match[1]) * unit)
