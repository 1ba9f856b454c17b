# pyright: strict
"""Functions that a client offers, and calls of them, in no wire's terms.

`tool_use` is the door: what cannot be offered is refused by the client's own name of the field.
What passes may still have a schema that no grammar can be made of, which
`specserve.api.tools.grammar` finds out where a grammar is needed.
"""

import enum
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from specserve.errors import InvalidField

MAX_TOOLS = 128
MAX_NAME_CHARS = 128
MAX_SCHEMA_CHARS = 64 * 1024  # of one function's parameters, as JSON
MAX_SCHEMA_DEPTH = 100  # objects and lists within each other
_OFFERS = 'send tools: [{"type": "function", "function": {"name": ...}}], or leave it out'


class ToolMode(enum.StrEnum):
    """Who decides whether something is called."""

    NONE = "none"
    AUTO = "auto"  # the model
    REQUIRED = "required"  # the client: at least one function is


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One function. `field` is the client's name of the object that describes it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: it takes no arguments
    strict: bool = False
    field: str = "tools"

    @property
    def num_chars(self) -> int:
        """That a template has to write at least."""
        return len(msgspec.json.encode(self.shown()))

    def shown(self) -> dict[str, Any]:
        """As chat templates expect it: OpenAI's object, of the fields that a model can use."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one request may call, and whether it must. There is at least one tool."""

    tools: tuple[Tool, ...]
    is_required: bool = False
    only: str | None = None  # the one function that has to be called, and exactly once
    is_parallel: bool = True  # an answer may have several calls
    # Pieces of a call leave as they come. Else a call leaves once its arguments are whole.
    is_streamed: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Those that a call may name."""
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))


class ToolCall(msgspec.Struct, frozen=True):
    """A call; of an answer, or of one that a client sends back."""

    call_id: str
    name: str
    arguments: str  # as the model wrote them: JSON, unless an answer was cut


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of the call numbered `index`; the first one has its id and the function's name."""

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None


def calls_of(deltas: Sequence[ToolCallDelta]) -> list[ToolCall]:
    """The calls of one sample that these pieces make, in order."""
    calls: list[ToolCall] = []
    pieces: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            calls.append(ToolCall(delta.call_id or "", delta.name, ""))
            pieces.append([])
        pieces[delta.index].append(delta.arguments)
    return [
        msgspec.structs.replace(call, arguments="".join(parts))
        for call, parts in zip(calls, pieces, strict=True)
    ]


def tool_use(
    tools: Sequence[Tool],
    *,
    choice: str | None = None,
    only: str | None = None,
    only_field: str = "tool_choice",
    is_parallel: bool = True,
    is_streamed: bool = False,
) -> ToolUse | None:
    """What a request may call; None: nothing. Raises InvalidField.

    `choice` is one of `ToolMode`, None what it is where nothing is said: auto. `only` names the
    function that has to be called instead, and stands at `only_field`.
    """
    _check_tools(tools)
    if choice is not None and choice not in list(ToolMode):
        known = ", ".join(ToolMode)
        problem = f"{choice[:64]!r} is not one of {known}, nor an object that names a function"
        raise InvalidField("tool_choice", problem)
    if not tools:
        if choice == ToolMode.REQUIRED or only is not None:
            raise InvalidField("tool_choice", f"needs tools, of which there are none; {_OFFERS}")
        return None
    if only is not None and only not in (names := [tool.name for tool in tools]):
        found = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InvalidField(only_field, f"{only[:64]!r} is none of tools; they are {found}")
    if choice == ToolMode.NONE:
        return None
    return ToolUse(
        tools=tuple(tools),
        is_required=choice == ToolMode.REQUIRED or only is not None,
        only=only,
        is_parallel=is_parallel,
        is_streamed=is_streamed,
    )


def _check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        problem = f"has {len(tools)} entries; the limit is {MAX_TOOLS}: offer fewer at once"
        raise InvalidField("tools", problem)
    seen: dict[str, str] = {}
    for tool in tools:
        _check_name(tool)
        if (before := seen.setdefault(tool.name, tool.field)) != tool.field:
            problem = f"{tool.name[:64]!r} is the name of {before}, too; names have to differ"
            raise InvalidField(f"{tool.field}.name", problem)
        _check_parameters(tool)


def _check_name(tool: Tool) -> None:
    field = f"{tool.field}.name"
    if not 1 <= len(tool.name) <= MAX_NAME_CHARS:
        problem = f"has {len(tool.name)} characters; it must have 1 to {MAX_NAME_CHARS}"
        raise InvalidField(field, problem)
    if not tool.name.isprintable() or tool.name != tool.name.strip():
        problem = f"{tool.name[:64]!r} must be printable, without blanks around it"
        raise InvalidField(field, problem)


def _check_parameters(tool: Tool) -> None:
    if tool.parameters is None:
        return
    field = f"{tool.field}.parameters"
    if _is_deeper(tool.parameters, MAX_SCHEMA_DEPTH):
        problem = f"is nested more than {MAX_SCHEMA_DEPTH} deep; use $ref and $defs"
        raise InvalidField(field, problem)
    num_chars = len(msgspec.json.encode(tool.parameters))
    if num_chars > MAX_SCHEMA_CHARS:
        problem = f"has {num_chars} bytes as JSON; the limit is {MAX_SCHEMA_CHARS}"
        raise InvalidField(field, problem)
    kind = tool.parameters.get("type", "object")
    if kind != "object":
        shown = msgspec.json.encode(kind).decode()[:64]
        problem = f'is {shown}; arguments are an object: send "type": "object" with properties'
        raise InvalidField(f"{field}.type", problem)


def _is_deeper(value: Any, limit: int) -> bool:  # noqa: ANN401 - what JSON holds
    if not isinstance(value, dict | list):
        return False
    parts = cast("dict[str, Any] | list[Any]", value)
    within = parts.values() if isinstance(parts, dict) else parts
    return limit == 0 or any(_is_deeper(each, limit - 1) for each in within)
