# pyright: strict
"""A name that is no setting: which one was meant. Knows names, and neither types nor values."""

import difflib
from collections.abc import Sequence

from specserve.settings.foreign_names import setting_of_key

_HOMES = {"port": "server.grpc_port"}  # as its flag is called


def home_of(key: str, known: Sequence[str]) -> str | None:
    """The "section.key" of a key that stands in no section or in a wrong one, if there is one."""
    if (home := _HOMES.get(key) or setting_of_key(key)) is not None:
        return home
    return next((dotted for dotted in known if dotted.partition(".")[2] == key), None)


def unknown_key(dotted: str, known: Sequence[str]) -> str:
    """What is wrong with "section.key", where the section exists."""
    near = home_of(dotted.partition(".")[2], known) or _nearest(dotted, known)
    return f"is no known key (nearest: {near})"


def unknown_section(name: str, known: Sequence[str]) -> str:
    """What is wrong with the name of a section."""
    sections = sorted({dotted.partition(".")[0] for dotted in known})
    return f"is no known section (nearest: {_nearest(name, sections)})"


def stray_key(key: str, known: Sequence[str]) -> str:
    """What is wrong with a key that stands in no section."""
    if (home := home_of(key, known)) is None:
        by_key = {dotted.partition(".")[2]: dotted for dotted in known}
        home = by_key[_nearest(key, list(by_key))]
    section, _, name = home.partition(".")
    return f"stands in no section (nearest: {home}, which is {name} under [{section}])"


def _nearest(name: str, known: Sequence[str]) -> str:
    (near,) = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return near
