# pyright: strict
"""From a body of /v1/responses and its conversation to a call, by way of the chat that it is.

A response is a chat whose messages are kept here instead of by its client. So it is translated to
one, and all that a chat is held against holds for it as well; `as_sent` gives fields back the names
that they were sent by.
"""

from collections.abc import Iterator, Sequence

import msgspec

from specserve.api.call import GenerateCall
from specserve.api.http.bodies import ChatBody, Message
from specserve.api.http.responses.body import ResponsesBody
from specserve.api.http.responses.functions import SentFunction, use_of
from specserve.api.http.responses.items import CallItem, Item, MessageItem
from specserve.api.http.structured import JsonSchema, ResponseFormat
from specserve.api.http.to_calls import call_of_chat
from specserve.errors import InvalidField
from specserve.types import SamplingParams
from specserve.validation import Limits

_SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
    "skip_special_tokens", "seed", "structured_outputs", "chat_template_kwargs", "spec", "priority",
    "cache_salt", "min_tokens_per_s", "timeout_s", "request_id", "top_logprobs",
)  # fmt: skip
# What chats, and the door behind them, call the fields that are named otherwise here.
_NAMES = {
    "chat": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "token_ids": "input",
}


def call_of_response(
    body: ResponsesBody,
    functions: Sequence[SentFunction],
    conversation: Sequence[Item],
    limits: Limits,
    defaults: SamplingParams,
) -> GenerateCall:
    """`conversation`: what the model is to answer. Raises InvalidField and Unsupported."""
    said = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    said += _messages_of(conversation)
    chat = ChatBody(
        messages=said,
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.has_logprobs,
        response_format=_format_of(body),
        **{name: getattr(body, name) for name in _SAME},
    )
    call = call_of_chat(chat, limits, defaults)
    told, use = use_of(
        functions, body.tool_choice, is_parallel=body.parallel_tool_calls, streams=body.stream
    )
    options = msgspec.structs.replace(call.chat, tools=told)
    return msgspec.structs.replace(call, chat=options, tools=use)


def require_calls(conversation: Sequence[Item], num_before: int) -> None:
    """Raise InvalidField for the result of a call that nobody has made before it.

    `num_before` items are not of the body's `input`, which the others are.
    """
    made: set[str] = set()
    for place, item in enumerate(conversation):
        if isinstance(item, CallItem):
            made.add(item.call_id)
        elif not isinstance(item, MessageItem) and item.call_id not in made:
            field = f"input[{place - num_before}].call_id"
            problem = "is of no call before it; send the function_call item, too"
            raise InvalidField(field, f"{item.call_id[:64]!r} {problem}")


def _messages_of(conversation: Sequence[Item]) -> Iterator[Message]:
    """As chats have them: calls are part of the assistant's message that they follow."""
    names: dict[str, str] = {}  # of functions, by their calls
    answer: Message | None = None  # that further calls belong to
    for item in conversation:
        if isinstance(item, CallItem):
            names[item.call_id] = item.name
            answer = _with_call(answer or Message(role="assistant"), item)
            continue
        if answer is not None:
            yield answer
            answer = None
        if not isinstance(item, MessageItem):
            name = names.get(item.call_id)
            yield Message(role="tool", content=item.output, tool_call_id=item.call_id, name=name)
        elif item.role == "assistant":
            answer = Message(role=item.role, content=item.text)
        else:
            yield Message(role=item.role, content=item.text)
    if answer is not None:
        yield answer


def _with_call(answer: Message, item: CallItem) -> Message:
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return msgspec.structs.replace(answer, tool_calls=[*(answer.tool_calls or []), call])


def _format_of(body: ResponsesBody) -> ResponseFormat | None:
    if (wanted := body.text.format) is None:
        return None
    schema = None if wanted.type != "json_schema" else JsonSchema(schema=wanted.schema or {})
    return ResponseFormat(type=wanted.type, json_schema=schema)


def as_sent(error: Exception) -> Exception:
    """The same error, by the names that fields have in the body of a response."""
    if isinstance(error, InvalidField) and error.field in _NAMES:
        return InvalidField(_NAMES[error.field], error.problem)
    return error


def largest_answer(call: GenerateCall, limits: Limits) -> int:
    """Log probabilities that the answer could have, of the tokens that it could have."""
    sampling = call.sampling
    if sampling.logprobs is None:
        return 0
    num_tokens = min(max(sampling.max_tokens, 0), limits.max_model_len)
    return num_tokens * (sampling.logprobs + 1)
