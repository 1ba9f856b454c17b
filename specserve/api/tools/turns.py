# pyright: strict
"""Conversations with calls in them, as chat templates take them.

`turns_with_calls` is for templates that take tools. For the others `turns_in_words` says all of it
in the roles that every template knows: the system message tells of the functions, an answer has its
calls in its text, and what functions returned is said by the user.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import msgspec

from specserve.api.call import ChatMessage
from specserve.api.tools.formats import ToolCallFormat
from specserve.api.tools.tool import Tool, ToolCall

Turn = dict[str, Any]

_INTRODUCTION = (
    "You can call functions where they help with what the user asks. Within <tools></tools> is one "
    "function a line, as a JSON object with its name and a schema of its parameters:"
)
_MARKED = (
    "To call a function, write a JSON object with its name and its arguments within "
    "{opening}{closing} tags:"
)
_BARE = "To call a function, answer with a JSON object of its name and its arguments alone:"
_EXAMPLE = ToolCall("", "name of the function", '{"name of a parameter": "value"}')


def turns_with_calls(messages: Sequence[ChatMessage]) -> list[Turn]:
    """In OpenAI's form, but for arguments, which templates write as JSON themselves."""
    return [_turn(message) for message in messages]


def _turn(message: ChatMessage) -> Turn:
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object_of(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        fields = {"tool_call_id": message.tool_call_id, "name": message.name}
        turn |= {name: value for name, value in fields.items() if value is not None}
    return turn


def _object_of(arguments: str) -> object:
    """Arguments that were cut, or never were an object, stay the text that they are."""
    try:
        found: object = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return arguments
    return cast(object, found) if isinstance(found, dict) else arguments


def turns_in_words(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], form: ToolCallFormat
) -> list[Turn]:
    """For templates that know roles and contents alone."""
    turns: list[Turn] = []
    for is_returned, group in groupby(messages, lambda message: message.role == "tool"):
        if is_returned:
            said = [f"<tool_response>\n{each.content}\n</tool_response>" for each in group]
            turns.append({"role": "user", "content": "\n".join(said)})
        else:
            turns += [{"role": each.role, "content": _with_calls(each, form)} for each in group]
    if not tools:
        return turns
    told = _told_of(tools, form)
    if turns[0]["role"] == "system":
        turns[0]["content"] = f"{turns[0]['content']}\n\n{told}"
        return turns
    return [{"role": "system", "content": told}, *turns]


def _with_calls(message: ChatMessage, form: ToolCallFormat) -> str:
    if not message.tool_calls:
        return message.content
    return "\n".join(filter(None, (message.content, form.written(message.tool_calls))))


def _told_of(tools: Sequence[Tool], form: ToolCallFormat) -> str:
    lines = [json.dumps(tool.shown(), ensure_ascii=False) for tool in tools]
    way = _MARKED.format(opening=form.opening, closing=form.closing) if form.opening else _BARE
    parts = (_INTRODUCTION, "<tools>", *lines, "</tools>", "", way, form.written([_EXAMPLE]))
    return "\n".join(parts)
