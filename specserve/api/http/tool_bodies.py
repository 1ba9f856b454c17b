# pyright: strict
"""Functions, choices of them and calls in bodies, as OpenAI's clients of chats write them.

What may be offered and called is decided by `specserve.api.tools.tool`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from specserve.api.http.wrong_fields import wrong_field
from specserve.api.tools.tool import Tool, ToolCall, ToolUse, tool_use
from specserve.errors import InvalidField, Unsupported

Json = dict[str, Any]


class FunctionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that may be called; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `tools`."""

    function: FunctionBody
    type: str = "function"


class _FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class _NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of `tool_choice`."""

    function: _FunctionName
    type: str = "function"


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments are JSON as text; some clients send the object itself."""

    name: str
    arguments: str | Json = ""


class CallBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an assistant's message; `index` stands in those that were streamed."""

    function: CalledFunction
    id: str = ""
    type: str = "function"
    index: int | None = None


class OffersTools(Protocol):
    """What a chat's body says of its tools."""

    @property
    def tool_choice(self) -> str | Json | None: ...
    @property
    def parallel_tool_calls(self) -> bool: ...
    @property
    def stream(self) -> bool: ...


class Offer(NamedTuple):
    """The same, of who has no body."""

    tool_choice: str | Json | None = None
    parallel_tool_calls: bool = True
    stream: bool = False


# What older clients and those of other paths send, and what to type here.
ELSEWHERE = {
    "functions": 'tools: [{"type": "function", "function": ...}]',
    "function_call": 'tool_choice: "auto", or {"type": "function", "function": {"name": ...}}',
}
OF_CHATS = frozenset(("tools", "tool_choice", "parallel_tool_calls", *ELSEWHERE))

_Part = TypeVar("_Part", ToolBody, _NamedTool, CallBody)


def tools_of(tools: list[Json] | None, first: int = 0) -> tuple[Tool, ...]:
    """The functions of a body, numbered from `first`. Raises InvalidField, Unsupported."""
    found: list[Tool] = []
    for index, fields in enumerate(tools or (), first):
        where = f"tools[{index}]"
        function = _read(fields, ToolBody, where).function
        tool = Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=bool(function.strict),
            field=f"{where}.function",
        )
        found.append(tool)
    return tuple(found)


def tool_use_of(body: OffersTools, tools: Sequence[Tool]) -> ToolUse | None:
    """What may be called of the body's `tools`. Raises InvalidField, Unsupported."""
    choice, only = body.tool_choice, None
    if isinstance(choice, dict):
        choice, only = None, _read(choice, _NamedTool, "tool_choice").function.name
    return tool_use(
        tools,
        choice=choice,
        only=only,
        only_field="tool_choice.function.name",
        is_parallel=body.parallel_tool_calls,
        is_streamed=body.stream,
    )


def tool_calls_of(calls: list[Json] | None, role: str, where: str) -> tuple[ToolCall, ...]:
    """Those of a message at `where`. Raises InvalidField, Unsupported."""
    if calls and role != "assistant":
        problem = f"are of assistants; this message is of the role {role[:64]!r}"
        raise InvalidField(f"{where}.tool_calls", problem)
    found: list[ToolCall] = []
    for index, fields in enumerate(calls or ()):
        call = _read(fields, CallBody, f"{where}.tool_calls[{index}]")
        arguments = call.function.arguments
        if isinstance(arguments, dict):
            field = f"{where}.tool_calls[{index}].function.arguments"
            arguments = _as_text(arguments, field)
        found.append(ToolCall(call.id, call.function.name, arguments))
    return tuple(found)


def _as_text(arguments: Json, field: str) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError as error:
        raise InvalidField(field, "is nested too deeply; send it as JSON in a text") from error


def _read(fields: Json, kind: type[_Part], where: str) -> _Part:
    """Its type is looked at first: what else another kind has would be named as misspelt."""
    if (named := fields.get("type", "function")) != "function":
        problem = f'{str(named)[:64]!r} is not served here; send "function"'
        raise Unsupported(f"{where}.type: {problem}")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise wrong_field(error, kind, cast(Any, fields), where) from error
