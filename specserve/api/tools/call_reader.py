# pyright: strict
"""One call in a model's text, which arrives in pieces: a JSON object with a name and arguments.

Where the name comes first, as formats teach it, the arguments can be passed on while they are
written. An object in another order is looked at once it is whole. Knows no marks around calls.
"""

import re
from collections.abc import Collection
from typing import Any, cast

import msgspec

# Characters that JSON has outside of its strings.
_BARE = frozenset('{}[]:,"+-.0123456789eEtrufalsn \t\n\r')
_STRING = r'"(?:[^"\\]|\\.)*"'
_TYPE = r'"type"\s*:\s*"function"\s*,\s*'
_ARGUMENTS = ("arguments", "parameters")
_HEAD = re.compile(
    rf'\{{\s*(?:{_TYPE})?"name"\s*:\s*({_STRING})\s*,\s*"(?:{"|".join(_ARGUMENTS)})"\s*:\s*(?=\{{)',
    re.DOTALL,
)
_FIRST_KEY = re.compile(rf"\{{\s*({_STRING})")
_KEYS = frozenset(f'"{key}"' for key in ("name", "type", "id", *_ARGUMENTS))
_MAX_HEAD_CHARS = 1024  # a longer head is not looked for again with every piece


class Piece(msgspec.Struct, frozen=True):
    """What became known of a call: first its name, and then its arguments in order."""

    name: str | None
    arguments: str


class CallReader:
    """Reads from the object's opening brace on."""

    def __init__(self, names: Collection[str], *, is_streamed: bool) -> None:
        """`names` of functions: a call of any other is none.

        `is_streamed`: pieces come while the object is written. Else nothing comes of it before its
        arguments are whole, and nothing at all where they are no JSON.
        """
        self._names, self._is_streamed = names, is_streamed
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._ends: list[int] = []  # of objects and lists within the outermost one
        self._name: str | None = None
        self._start = 0  # of the arguments, once `_name` is known
        self._num_sent = 0  # characters of the arguments
        self._is_late = False  # a head was looked for in vain, and is no more before the end
        self.raw = ""  # all that was read
        self.is_closed = False  # by its brace
        self.is_broken = False  # the next character cannot be read: this is no JSON
        self.is_call = False  # pieces have come

    @property
    def is_over(self) -> bool:
        """Whether it reads no more."""
        return self.is_closed or self.is_broken

    def read(self, text: str) -> int:
        """How many characters of `text` belong to the object: all, unless it is over."""
        taken = next((i for i, char in enumerate(text) if not self._step(char, i)), len(text))
        self.raw += text[:taken]
        if not self._is_call_so_far():
            self.is_broken = True
        return taken

    def _step(self, char: str, offset: int) -> bool:
        """Take a character; False if the object ended before it."""
        if self.is_over:
            return False
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            else:
                self._in_string = char != '"'
        elif char not in _BARE:
            self.is_broken = True
            return False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._ends.append(len(self.raw) + offset + 1)
            self.is_closed = self._depth == 0
        return True

    def _is_call_so_far(self) -> bool:
        """Looks for the head; False for an object that is certainly no call."""
        if self._name is not None or (self._is_late and not self.is_closed):
            return True
        if (head := _HEAD.match(self.raw)) is not None:
            name = _decoded(head[1])
            self._start = head.end()
            if name not in self._names:
                return False
            self._name = cast(str, name)
        elif (key := _FIRST_KEY.match(self.raw)) is not None:
            self._is_late = len(self.raw) > _MAX_HEAD_CHARS
            return key[1] in _KEYS
        return True

    def pieces(self) -> list[Piece]:
        """What is new since they were asked for."""
        if self._name is None:
            is_whole = self.is_closed and not self.is_broken and not self.is_call
            return self._of_whole() if is_whole else []
        end = next((end for end in self._ends if end > self._start), None)
        if not self.is_call:
            if not self._is_streamed and not self._is_object(end):
                return []
            self.is_call = True
            found = [Piece(self._name, "")]
        else:
            found = []
        until = len(self.raw) if end is None else end
        if arguments := self.raw[self._start + self._num_sent : until]:
            self._num_sent += len(arguments)
            found.append(Piece(None, arguments))
        return found

    def _is_object(self, end: int | None) -> bool:
        return end is not None and isinstance(_decoded(self.raw[self._start : end]), dict)

    def _of_whole(self) -> list[Piece]:
        """Of an object whose name comes later, or that has no arguments."""
        whole = _decoded(self.raw)
        if not isinstance(whole, dict):
            return []
        fields = cast(dict[str, Any], whole)
        arguments = next((fields[key] for key in _ARGUMENTS if key in fields), None)
        if isinstance(arguments, str):  # some write JSON within JSON, as OpenAI's API has it
            arguments = _decoded(arguments)
        arguments = cast(Any, {}) if arguments is None else arguments
        if fields.get("name") not in self._names or not isinstance(arguments, dict):
            return []
        self.is_call = True
        return [Piece(fields["name"], ""), Piece(None, msgspec.json.encode(arguments).decode())]


def _decoded(text: str) -> object:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
