# pyright: strict
"""From a body of /v1/responses and its conversation to a call, by way of the chat that it is.

A response is a chat whose messages are kept here instead of by its client. So it is translated to
one, and all that a chat is held against holds for it as well; `as_sent` gives fields back the names
that they were sent by.
"""

from collections.abc import Sequence

from specserve.api.call import GenerateCall
from specserve.api.http.bodies import ChatBody, Message
from specserve.api.http.responses.body import ResponsesBody
from specserve.api.http.responses.items import Item
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
    body: ResponsesBody, conversation: Sequence[Item], limits: Limits, defaults: SamplingParams
) -> GenerateCall:
    """`conversation`: what the model is to answer. Raises InvalidField and Unsupported."""
    said = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    said += [Message(role=item.role, content=item.text) for item in conversation]
    chat = ChatBody(
        messages=said,
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.has_logprobs,
        response_format=_format_of(body),
        **{name: getattr(body, name) for name in _SAME},
    )
    return call_of_chat(chat, limits, defaults)


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
