"""Functions and calls between protobuf messages and our own records, both ways. Decides nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from specserve.api.call import ChatMessage
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.tools.tool import Tool, ToolCall, ToolCallDelta, ToolMode, ToolUse, tool_use
from specserve.errors import InvalidField

# --- requests, on the server ------------------------------------------------------------------


def tools_of(request: pb.GenerateRequest) -> tuple[Tool, ...]:
    """The functions of a request. Raises InvalidField for a schema that is no JSON object."""
    return tuple(_tool_of(tool, f"tools[{i}]") for i, tool in enumerate(request.tools))


def _tool_of(tool: pb.Tool, field: str) -> Tool:
    parameters: dict[str, Any] | None = None
    if tool.HasField("parameters"):
        try:
            parameters = msgspec.json.decode(tool.parameters, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"is no JSON object: {error}; send a JSON schema as text"
            raise InvalidField(f"{field}.parameters", problem) from error
    return Tool(
        name=tool.name,
        description=tool.description if tool.HasField("description") else None,
        parameters=parameters,
        strict=tool.strict,
        field=field,
    )


def tool_use_of(
    request: pb.GenerateRequest, tools: Sequence[Tool], *, is_streamed: bool
) -> ToolUse | None:
    """What may be called of `tools`. Raises InvalidField."""
    choice: str | None = None
    only: str | None = None
    match request.tool_choice.WhichOneof("choice"):
        case "mode":
            choice = request.tool_choice.mode
        case "function":
            only = request.tool_choice.function
        case _:
            if request.HasField("tool_choice"):
                raise InvalidField("tool_choice", "is empty; send one of mode, function")
    is_parallel = not request.HasField("parallel_tool_calls") or request.parallel_tool_calls
    return tool_use(
        tools,
        choice=choice,
        only=only,
        only_field="tool_choice.function",
        is_parallel=is_parallel,
        is_streamed=is_streamed,
    )


def message_of(turn: pb.ChatMessage) -> ChatMessage:
    return ChatMessage(
        turn.role,
        turn.content,
        tuple(tool_call_of(call) for call in turn.tool_calls),
        turn.tool_call_id if turn.HasField("tool_call_id") else None,
        turn.name if turn.HasField("name") else None,
    )


# --- requests, on the client ------------------------------------------------------------------


def fields_of(use: ToolUse | None) -> dict[str, Any]:
    """Of a request; none where nothing may be called."""
    if use is None:
        return {}
    fields: dict[str, Any] = {"tools": [_message_of_tool(tool) for tool in use.tools]}
    if use.only is not None:
        fields["tool_choice"] = pb.ToolChoice(function=use.only)
    elif use.is_required:
        fields["tool_choice"] = pb.ToolChoice(mode=ToolMode.REQUIRED)
    if not use.is_parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _message_of_tool(tool: Tool) -> pb.Tool:
    schema = tool.parameters
    return pb.Tool(
        name=tool.name,
        description=tool.description,
        parameters=None if schema is None else msgspec.json.encode(schema).decode(),
        strict=tool.strict or None,
    )


def turn_fields(message: ChatMessage) -> dict[str, Any]:
    """Of a `ChatMessage` of the wire."""
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": [message_of_call(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


# --- calls, both ways -------------------------------------------------------------------------


def message_of_call(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.call_id, name=call.name, arguments=call.arguments)


def tool_call_of(call: pb.ToolCall) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments)


def messages_of_pieces(pieces: Iterable[ToolCallDelta]) -> list[pb.ToolCallDelta]:
    return [
        pb.ToolCallDelta(
            index=piece.index, id=piece.call_id, name=piece.name, arguments=piece.arguments
        )
        for piece in pieces
    ]


def pieces_of(messages: Iterable[pb.ToolCallDelta]) -> list[ToolCallDelta]:
    return [
        ToolCallDelta(
            each.index,
            each.arguments,
            each.id if each.HasField("id") else None,
            each.name if each.HasField("name") else None,
        )
        for each in messages
    ]
