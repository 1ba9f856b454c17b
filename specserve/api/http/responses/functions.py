# pyright: strict
"""Functions in bodies of /v1/responses, and which of them is to be called.

OpenAI writes them flat here, and nested in chats. What may be offered and called is decided by
`specserve.api.tools.tool`, as for chats.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from specserve.api.http.answers import Json
from specserve.api.http.wrong_fields import wrong_field
from specserve.api.tools.tool import Tool, ToolUse, tool_use
from specserve.errors import InvalidField, Unsupported

_FUNCTION = "function"
_FORM = '{"type": "function", "name": ...}'


class SentFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `tools`; `parameters` is a JSON schema."""

    type: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `tool_choice`."""

    type: str
    name: str


_Sent = TypeVar("_Sent", SentFunction, _NamedFunction)


def functions_of(sent: Sequence[Json]) -> list[SentFunction]:
    """Of a body's `tools`. Raises InvalidField; Unsupported for tools that a server runs."""
    return [_read(each, SentFunction, f"tools[{i}]") for i, each in enumerate(sent)]


def use_of(
    functions: Sequence[SentFunction],
    choice: str | Json | None,
    *,
    is_parallel: bool,
    streams: bool,
) -> tuple[tuple[Tool, ...], ToolUse | None]:
    """What the model is told of, and what it may call. Raises InvalidField and Unsupported."""
    only = None
    if isinstance(choice, dict):
        choice, only = None, _read(choice, _NamedFunction, "tool_choice").name
    if not functions and (choice == "required" or only is not None):
        problem = f"needs tools, of which there are none; send tools: [{_FORM}], or leave it out"
        raise InvalidField("tool_choice", problem)
    tools = tuple(_tool_of(each, f"tools[{i}]") for i, each in enumerate(functions))
    use = tool_use(
        tools,
        choice=choice,
        only=only,
        only_field="tool_choice.name",
        is_parallel=is_parallel,
        is_streamed=streams,
    )
    return (() if use is None else tools), use  # what may not be called is not told of


def _tool_of(function: SentFunction, field: str) -> Tool:
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
        field=field,
    )


def _read(sent: Json, kind: type[_Sent], where: str) -> _Sent:
    """Its type is looked at first: what another kind has would be named as misspelt."""
    if (named := str(sent.get("type"))) != _FUNCTION:
        problem = f"{named[:64]!r} is not served here; send functions, {_FORM}, which clients run"
        raise Unsupported(f"{where}.type: {problem}")
    if _FUNCTION in sent:  # as chats have it
        raise InvalidField(f"{where}.{_FUNCTION}", f"stands flat here: send {_FORM}")
    try:
        return msgspec.convert(sent, kind)
    except msgspec.ValidationError as error:
        raise wrong_field(error, kind, sent, where) from error
