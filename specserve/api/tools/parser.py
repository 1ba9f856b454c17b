# pyright: strict
"""Calls in a model's text, which arrives in pieces; what is no call is passed on as text.

`parser_of` a format makes one for a sample. What looks like a call and is none (no JSON, arguments
that are no object, a function that was not offered) is text, as the model wrote it. Where calls are
streamed, a piece that has left is not taken back: of a call that turns out broken behind its name
the client has what the model wrote.
"""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from specserve.api.tools.call_reader import CallReader
from specserve.api.tools.formats import ToolCallFormat
from specserve.api.tools.tool import ToolCallDelta, ToolUse

_PYTHON_TAG = "<|python_tag|>"  # which Llama 3 may write before a call
_BLANKS = re.compile(r"\s*")


class ParsedText(msgspec.Struct, frozen=True):
    """What a piece of a sample's text comes to: text that is no call, and pieces of calls."""

    text: str = ""
    calls: list[ToolCallDelta] = []


def new_call_id() -> str:
    """As OpenAI's clients know it."""
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser(ABC):
    """Of one sample. Text that may belong to a call is held back until that is known."""

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._names = frozenset(tool.name for tool in use.callable_tools)
        self._pending = ""  # not looked at yet
        self._held = ""  # what is text again if the object that is read is no call
        self._reader: CallReader | None = None
        self._text: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self.num_calls = 0
        self._step: Callable[[bool], bool] = self._begin

    def push(self, text: str) -> ParsedText:
        """Take the next piece."""
        self._pending += text
        return self._read(is_end=False)

    def finish(self) -> ParsedText:
        """What was held back, at the end of the sample."""
        return self._read(is_end=True)

    def _read(self, *, is_end: bool) -> ParsedText:
        while self._step(is_end):
            pass
        found = ParsedText("".join(self._text), self._calls)
        self._text, self._calls = [], []
        return found

    # --- steps: True if there may be more to do with what is pending ---------------------------

    @abstractmethod
    def _begin(self, is_end: bool) -> bool:
        """Before anything was read."""

    @abstractmethod
    def _behind(self, is_end: bool) -> bool:
        """After an object, call or not."""

    def _open(self, held: str) -> None:
        """An object begins at what is pending, behind `held`."""
        self._held = held
        self._reader = CallReader(self._names, is_streamed=self._use.is_streamed)
        self._step = self._within

    def _within(self, is_end: bool) -> bool:
        """An object is read."""
        reader = self._reader
        assert reader is not None
        taken = reader.read(self._pending)
        self._pending = self._pending[taken:]
        for piece in reader.pieces():
            if piece.name is not None:
                call = ToolCallDelta(self.num_calls, call_id=new_call_id(), name=piece.name)
                self.num_calls += 1
            else:
                call = ToolCallDelta(self.num_calls - 1, piece.arguments)
            self._calls.append(call)
        if not reader.is_over and not is_end:
            return False
        if not reader.is_call:
            self._text.append(self._held + reader.raw)
        self._step = self._behind
        return True

    def _rest(self, is_end: bool) -> bool:
        """Nothing that comes is a call."""
        self._text.append(self._pending)
        self._pending = ""
        return False


class MarkedCalls(ToolCallParser):
    """Calls between marks, wherever they stand. Blanks around calls are no text."""

    def __init__(self, use: ToolUse, opening: str, closing: str) -> None:
        super().__init__(use)
        self._opening, self._closing = opening, closing

    def _begin(self, is_end: bool) -> bool:
        before, mark, behind = self._pending.partition(self._opening)
        if mark:
            text = before.rstrip()
            self._text.append(text)
            blanks = _BLANKS.match(behind)
            assert blanks is not None
            if (place := blanks.end()) == len(behind) and not is_end:
                self._pending = self._pending[len(text) :]
                return False
            held = before[len(text) :] + mark + behind[:place]
            self._pending = behind[place:]
            if self._pending.startswith("{"):
                self._open(held)
            else:
                self._text.append(held)
            return True
        if is_end:
            if not self.num_calls or self._pending.strip():
                self._text.append(self._pending)
            self._pending = ""
            return False
        kept = len(self._pending[: _place_of_begun(self._pending, self._opening)].rstrip())
        self._text.append(self._pending[:kept])
        self._pending = self._pending[kept:]
        return False

    def _behind(self, is_end: bool) -> bool:
        """A further object between the same marks is a call like the first."""
        assert self._reader is not None
        if not self._reader.is_call:
            self._step = self._begin
            return True
        rest = self._pending.lstrip()
        if not is_end and (not rest or _begins(rest, self._closing)):
            return False
        if rest.startswith("{"):
            self._pending = rest
            self._open("")
        elif rest.startswith(self._closing):
            self._pending = rest.removeprefix(self._closing)
            self._step = self._after_mark
        else:
            self._step = self._begin
        return True

    def _after_mark(self, is_end: bool) -> bool:
        """Blanks behind a call's mark are dropped, however many pieces they come in."""
        self._pending = self._pending.lstrip()
        if not self._pending and not is_end:
            return False
        self._step = self._begin
        return True


class BareCalls(ToolCallParser):
    """An answer that begins with an object that is a call; more may follow behind semicolons."""

    def _begin(self, is_end: bool) -> bool:
        rest = self._pending.lstrip()
        if not is_end and (not rest or _begins(rest, _PYTHON_TAG)):
            return False
        rest = rest.removeprefix(_PYTHON_TAG).lstrip()
        if not rest and not is_end:
            return False
        return self._object_or_text(rest)

    def _behind(self, is_end: bool) -> bool:
        assert self._reader is not None
        if not self._reader.is_call:
            self._step = self._rest
            return True
        rest = self._pending.lstrip(" \t\r\n;")
        if not rest:
            if is_end:
                self._pending = ""
            return False
        return self._object_or_text(rest)

    def _object_or_text(self, rest: str) -> bool:
        if rest.startswith("{"):
            held = self._pending[: len(self._pending) - len(rest)]
            self._pending = rest
            self._open(held)
        else:
            self._step = self._rest
        return True


def parser_of(form: ToolCallFormat, use: ToolUse) -> ToolCallParser:
    """For one sample of a request that may call `use`."""
    if form.opening:
        return MarkedCalls(use, form.opening, form.closing)
    return BareCalls(use)


def _begins(text: str, mark: str) -> bool:
    """Whether `text` may become `mark`, and is not."""
    return len(text) < len(mark) and mark.startswith(text)


def _place_of_begun(text: str, mark: str) -> int:
    """Where the longest tail of `text` begins that may become `mark`; its length if none does."""
    longest = min(len(mark) - 1, len(text))
    return next(
        (len(text) - size for size in range(longest, 0, -1) if mark.startswith(text[-size:])),
        len(text),
    )
