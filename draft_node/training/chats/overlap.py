# pyright: strict
"""Whether a question was taken from text that must not be trained on: by words in a row."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from specserve.errors import InvalidField

NUM_WORDS = 8  # which two texts have in common by copying alone
_WORD = re.compile(r"\w+")
_GZIP = b"\x1f\x8b"


class Overlap:
    """The word n-grams of some files: JSON lines, whose strings are taken, or plain text."""

    def __init__(self, paths: Sequence[Path], flag: str) -> None:
        """Raises InvalidField naming `flag` for a file that cannot be read."""
        self._grams = {
            gram for path in paths for text in _texts(path, flag) for gram in grams(text)
        }

    def __contains__(self, text: str) -> bool:
        """Whether `text` has `NUM_WORDS` words in a row that one of the files has."""
        return any(gram in self._grams for gram in grams(text))


def grams(text: str) -> Iterator[int]:
    """A hash of every `NUM_WORDS` words in a row; of a shorter text, of all its words."""
    words = [word.lower() for word in _WORD.findall(text)]
    for start in range(max(1, len(words) - NUM_WORDS + 1)):
        yield hash(tuple(words[start : start + NUM_WORDS]))


def _texts(path: Path, flag: str) -> Iterator[str]:
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidField(flag, f"cannot read {path}: {error}") from error
    yield text  # its words may run on from line to line
    for part in (text, *text.split("\n")):
        try:
            yield from _strings(json.loads(part))
        except (ValueError, RecursionError):
            continue


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - parsed JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, Any]", value).values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)
