# pyright: strict
"""A response as it is shown: the object that OpenAI's clients read, in every state it goes through.

in_progress -> completed | incomplete | failed | cancelled
"""

import time

import msgspec
from msgspec import UNSET, UnsetType

from specserve.api.call import GenerateCall
from specserve.api.events import Usage
from specserve.api.http.answers import Json
from specserve.api.http.refusals import Refusal
from specserve.api.http.responses.body import ResponsesBody
from specserve.api.http.responses.items import Item

RUNNING = "in_progress"
COMPLETED, INCOMPLETE, FAILED, CANCELLED = "completed", "incomplete", "failed", "cancelled"
# What OpenAI calls the errors that its clients know; any other status is the server's.
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
# Which OpenAI's clients need of every function.
_AS_A_FUNCTION: Json = {"description": None, "parameters": None, "strict": None}


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """Times are whole seconds since 1970. What was not asked for is what was used."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = RUNNING
    background: bool
    error: Json | None = None
    incomplete_details: Json | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: Json | None = None
    metrics: Json | UnsetType = UNSET  # what speculation did, as of completions and chats


def begun(
    response_id: str, body: ResponsesBody, call: GenerateCall, model: str, *, is_kept: bool
) -> Response:
    """What there is of a response before its first token. `is_kept`: it can be asked for later."""
    return Response(
        id=response_id,
        created_at=int(time.time()),
        background=body.background,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        store=is_kept,
        temperature=call.sampling.temperature,
        text={"format": _format_of(body)},
        tool_choice=body.tool_choice or "auto",
        tools=[_AS_A_FUNCTION | each for each in body.tools],
        top_logprobs=body.top_logprobs or 0,
        top_p=call.sampling.top_p,
    )


def _format_of(body: ResponsesBody) -> Json:
    """As it was sent."""
    if body.text.format is None:
        return {"type": "text"}
    fields = msgspec.structs.asdict(body.text.format)
    return {name: value for name, value in fields.items() if value is not None}


def usage_of(usage: Usage) -> Json:
    """As OpenAI counts; clients need the fields of what is not counted here, which is 0."""
    prompt, generated = usage.num_prompt_tokens, usage.num_generated_tokens
    cached = {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0}
    return {
        "input_tokens": prompt,
        "input_tokens_details": cached,
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + generated,
    }


def error_of(refusal: Refusal) -> Json:
    """Why a response has failed."""
    return {
        "code": _ERROR_CODES.get(refusal.code, "server_error"),
        "message": refusal.message,
        "param": refusal.param,
        "type": refusal.type,
    }
