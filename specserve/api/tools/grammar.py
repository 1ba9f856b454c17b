# pyright: strict
"""Grammars of calls: of requests that have to call something, and of functions that are strict.

A call is written as the model's own format has it, so that a model does what it was taught, and as
`specserve.api.tools.parser` reads it. Its arguments keep to the function's schema.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

from specserve.api.tools.formats import ToolCallFormat
from specserve.api.tools.tool import Tool, ToolUse
from specserve.errors import InvalidField, Unsupported
from specserve.types import Grammar, GrammarKind

Json = dict[str, Any]

# Of a schema: with any of these it is not the properties alone that say which there may be.
_OPEN = frozenset(
    (
        "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "minProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas",
    )
)  # fmt: skip


def grammar_of(form: ToolCallFormat, use: ToolUse, wanted: Grammar | None) -> Grammar | None:
    """What an answer has to be; None: anything.

    `wanted`: what it has to be where it calls nothing. Raises Unsupported for what cannot be told
    from a call.
    """
    if use.is_required:
        return _grammar(_calls(form, use))
    if wanted is not None:
        if wanted.kind is not GrammarKind.JSON_SCHEMA or not form.opening:
            problem = "goes with no tools that may be called; leave out one, or send tool_choice"
            raise Unsupported(f'{wanted.field}: {problem} "none" or "required"')
        return _grammar({"type": "or", "elements": [_answer(wanted), _calls(form, use)]})
    if any(tool.strict for tool in use.tools):
        return _grammar(_text_and_calls(form, use))
    return None


def _answer(wanted: Grammar) -> Json:
    try:
        return {"type": "json_schema", "json_schema": json.loads(wanted.text)}
    except (ValueError, RecursionError) as error:
        raise InvalidField(wanted.field, f"cannot be used: it is no JSON: {error}") from error


def _calls(form: ToolCallFormat, use: ToolUse) -> Json:
    """One or more, and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": _tags(form, use),
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": use.only is not None or not (use.is_parallel and form.is_parallel),
    }


def _text_and_calls(form: ToolCallFormat, use: ToolUse) -> Json:
    if not form.opening:
        begun = {"type": "regex", "pattern": r"[ \t\r\n]*[^{ \t\r\n]"}
        text = {"type": "sequence", "elements": [begun, {"type": "any_text"}]}
        nothing = {"type": "const_string", "value": ""}
        return {"type": "or", "elements": [_calls(form, use), text, nothing]}
    return {
        "type": "triggered_tags",
        "triggers": [form.opening],
        "tags": _tags(form, use),
        "stop_after_first": not use.is_parallel,
    }


def _tags(form: ToolCallFormat, use: ToolUse) -> list[Json]:
    return [
        {
            "type": "tag",
            "begin": form.before + form.head(tool.name),
            "content": {"type": "json_schema", "json_schema": _schema_of(tool, use)},
            "end": "}" + form.behind,
        }
        for tool in use.callable_tools
    ]


def _schema_of(tool: Tool, use: ToolUse) -> Json:
    return arguments_schema(tool) if _is_kept_to(tool, use) else {"type": "object"}


def _is_kept_to(tool: Tool, use: ToolUse) -> bool:
    """Whether calls of it have to keep to its schema: a model that is free to call may err."""
    return use.is_required or tool.strict


def _grammar(form: Json) -> Grammar:
    try:
        text = json.dumps({"format": form}, ensure_ascii=False)
    except RecursionError as error:  # of what an answer without calls has to be
        raise InvalidField("response_format", "is nested too deeply to go with tools") from error
    return Grammar(GrammarKind.STRUCTURAL_TAG, text, "tools")


def arguments_schema(tool: Tool) -> Json:
    """What the arguments of a call keep to.

    Properties that the schema does not name are not made, unless it says which others there may be:
    every function has its names, and a small model would go on with others for long.
    """
    schema: Json = {"type": "object"}
    schema["properties"] = cast(Json, {})
    schema |= tool.parameters or {}
    properties: Any = schema["properties"]
    names: Any = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(names, list) or _OPEN & schema.keys():
        return schema
    if set(map(str, cast(list[object], names))) <= cast(Json, properties).keys():
        schema["additionalProperties"] = False
    return schema


async def check_calls(
    grammar: Grammar,
    use: ToolUse,
    wanted: Grammar | None,
    check: Callable[[Grammar], Awaitable[None]],
) -> None:
    """`check` what `grammar_of` has made of the others. Raises InvalidField for what is wrong."""
    try:
        await check(grammar)
    except InvalidField:
        if wanted is not None and not use.is_required:
            await check(wanted)
        for tool in use.callable_tools:
            if _is_kept_to(tool, use):
                schema = json.dumps(arguments_schema(tool))
                field = f"{tool.field}.parameters"
                await check(Grammar(GrammarKind.JSON_SCHEMA, schema, field))
        raise
