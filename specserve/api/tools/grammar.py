# pyright: strict
"""Grammars of calls, for requests that have to call something: arguments keep to their schemas.

A call is written as the model's own format has it, so that a model does what it was taught, and as
`specserve.api.tools.parser` reads it. JSON has one blank behind commas and colons and no other.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from specserve.api.tools.formats import ToolCallFormat
from specserve.api.tools.tool import Tool, ToolUse
from specserve.errors import InvalidField
from specserve.grammars.source import JSON_STYLE
from specserve.types import Grammar, GrammarKind

# Of a schema: with any of these it is not the properties alone that say which there may be.
_OPEN = frozenset(
    (
        "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "minProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas",
    )
)  # fmt: skip


def forced_calls(form: ToolCallFormat, use: ToolUse, token_ids: Mapping[str, int]) -> Grammar:
    """The answer is calls and nothing else; `token_ids`: of marks that are a token each."""
    calls = [f"call_{index}" for index in range(len(use.callable_tools))]
    lines = ["%llguidance {}", f"start: {_repeated(form, use)}"]
    before, behind = _mark(form.opening, token_ids), _mark(form.closing, token_ids)
    lines.append(" ".join(["call:", *before, f"({' | '.join(calls)})", *behind]))
    for name, tool in zip(calls, use.callable_tools, strict=True):
        opening = _text(("\n" if before else "") + form.head(tool.name))
        closing = _text("}\n" if behind else "}")
        lines.append(f"{name}: {opening} {name}_arguments {closing}")
        lines.append(f"{name}_arguments: %json {json.dumps(arguments_schema(tool))}")
    return Grammar(GrammarKind.GRAMMAR, "\n".join(lines) + "\n", "tools")


def _repeated(form: ToolCallFormat, use: ToolUse) -> str:
    if use.only is not None or not (use.is_parallel and form.is_parallel):
        return "call"
    return f"call ({_text(form.separator)} call)*"


def _mark(mark: str, token_ids: Mapping[str, int]) -> list[str]:
    """A mark that is a token is that one, as the model was taught it, however it may be spelt."""
    if not mark:
        return []
    return [f"<[{token_ids[mark]}]>" if mark in token_ids else _text(mark)]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """What the arguments of a forced call keep to.

    Properties that the schema does not name are not made, unless it says which others there may be:
    every function has its names, and a small model would go on with others for long.
    """
    schema: dict[str, Any] = {"type": "object", "properties": {}} | (tool.parameters or {})
    properties: Any = schema["properties"]
    names: Any = schema.get("required", [])
    is_named = isinstance(properties, dict) and isinstance(names, list)
    if is_named and not _OPEN & schema.keys() and all(name in properties for name in names):
        schema["additionalProperties"] = False
    wishes: Any = schema.get("x-guidance", {})
    return schema | {"x-guidance": JSON_STYLE | (wishes if isinstance(wishes, dict) else {})}


async def check_calls(
    grammar: Grammar, use: ToolUse, check: Callable[[Grammar], Awaitable[None]]
) -> None:
    """`check` the grammar of forced calls. Raises InvalidField that names the function at fault."""
    try:
        await check(grammar)
    except InvalidField:
        for tool in use.callable_tools:
            schema = json.dumps(arguments_schema(tool))
            field = f"{tool.field}.parameters"
            await check(Grammar(GrammarKind.JSON_SCHEMA, schema, field))
        raise
