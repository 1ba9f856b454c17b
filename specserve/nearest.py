# pyright: strict
"""Which known name somebody meant who wrote another one: a flag, a field of a body, a path.

A wrong suggestion sends people the wrong way, so there is none where nothing is near or where two
are equally near. Knows names alone, and nothing of what they mean.
"""

import difflib
import re
from collections.abc import Collection

_NEAR = 0.8  # difflib's ratio, above which two names are one name and a slip of the hand
_LEAST_CHARS = 3  # of a beginning that says anything about how the name goes on
_MOST_CHARS = 128  # of a name; comparing takes the square of them, and strangers may send millions
_BETWEEN_WORDS = re.compile("[-_/. ]+")


def nearest(name: str, known: Collection[str]) -> str | None:
    """The one of `known` that was meant; None where there is none, or several are as likely.

    Names that begin differently are different names: `--timeout-s` is not `--hang-timeout-s`.
    """
    if len(name) > _MOST_CHARS:
        return None
    given = _plain(name)
    alike = [each for each in known if _plain(each)[:1] == given[:1] != ""]
    for candidates in (_spelt_alike(given, alike), _continued(given, alike)):
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None


def _plain(name: str) -> str:
    """As people tell names apart: case and how words are joined make no other name."""
    return "-".join(filter(None, _BETWEEN_WORDS.split(name.lower())))


def _spelt_alike(given: str, known: Collection[str]) -> list[str]:
    """Those that are the most alike, if they are near at all."""
    likeness = {each: _ratio(given, _plain(each)) for each in known}
    most = max(likeness.values(), default=0.0)
    return [each for each, ratio in likeness.items() if ratio == most > _NEAR]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _continued(given: str, known: Collection[str]) -> list[str]:
    """Those that have all words of `given`, or their beginnings, in order and from the first."""
    if len(given) < _LEAST_CHARS:
        return []
    return [each for each in known if _begins(given.split("-"), _plain(each).split("-"))]


def _begins(given: list[str], words: list[str]) -> bool:
    if not words[0].startswith(given[0]):
        return False
    rest = iter(words[1:])  # each word is looked for behind the one before it
    return all(any(word.startswith(start) for word in rest) for start in given[1:])
