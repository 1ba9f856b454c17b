# pyright: strict
"""Which questions are kept: of a sensible length, asked for the first time, copied from nowhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from draft_node.training.chats.overlap import Overlap
from specserve.errors import InvalidField

SHORTEST, LONGEST = 8, 1200  # characters
_NO_WORD = re.compile(r"\W+")
_COMPARED = 80  # characters, letters and digits alone: more is the same question in other words
_FLAG = "--prompts"
_NAMES = ("prompt", "question", "instruction", "text")
_TURNS = ("turns", "messages", "conversations")  # the last is ShareGPT's, of "from" and "value"


class Questions:
    """Remembers what was asked."""

    def __init__(self, excluded: Overlap) -> None:
        self._excluded = excluded
        self._asked: set[str] = set()

    def take(self, text: str) -> bool:
        """Whether it is to be asked; the next time it is not."""
        key = _key(text)
        if not SHORTEST <= len(text) <= LONGEST or not key or key in self._asked:
            return False
        if text in self._excluded:
            return False
        self._asked.add(key)
        return True


def read_questions(path: Path) -> Iterator[str]:
    """The first thing that a user says in every line of a file: JSON, or the question itself.

    Raises InvalidField naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(_FLAG, f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _question(line, f"{path}, line {number}")


def _question(line: str, place: str) -> str:
    """A line that is a JSON object holds it as text, or as the first of several turns."""
    if not line.startswith("{"):
        return line.strip()
    try:
        found: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidField(_FLAG, f"{place} is no JSON: {error}") from error
    turns = next((found[name] for name in _TURNS if name in found), None)
    said = [_words(turn) for turn in cast("list[Any]", turns)] if isinstance(turns, list) else []
    first = next((words for words in said if words is not None), None)
    for text in (*(found.get(name) for name in _NAMES), first):
        if isinstance(text, str) and text.strip():
            return text.strip()
    known = ", ".join((*_NAMES, *_TURNS))
    raise InvalidField(_FLAG, f"{place} has no text in any of: {known}")


def _words(turn: Any) -> object:  # noqa: ANN401 - parsed JSON
    """Of a turn that is text or a message of a user; None of others' messages."""
    if not isinstance(turn, dict):
        return turn
    message = cast("dict[str, Any]", turn)
    who = message.get("role", message.get("from", "user"))
    return message.get("content", message.get("value")) if who in ("user", "human") else None


def _key(text: str) -> str:
    return _NO_WORD.sub("", text).lower()[:_COMPARED]
