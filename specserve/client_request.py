"""What the Python client is asked, as a message of the API: prompts and options, checked.

Knows no connection.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, SupportsFloat, TypedDict

from specserve.api import to_proto
from specserve.api.call import ChatMessage, ChatOptions, GenerateCall, SpecOptions
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.http.tool_bodies import Offer, tool_calls_of, tool_use_of, tools_of
from specserve.api.tools.tool import Tool, ToolUse
from specserve.errors import InvalidField
from specserve.types import Grammar, SamplingParams

Prompt = str | Sequence[int] | Sequence[ChatMessage] | Sequence[Mapping[str, Any]]

_LONGEST_TIMEOUT_S = 1e8  # three years: beyond, gRPC's own clock overflows
_NO_PROMPT = "is of type {}; it must be a string, token ids or messages"
_OF_MESSAGES = frozenset(("role", "content", "tool_calls", "tool_call_id", "name"))


class Options(TypedDict, total=False):
    """Everything but the prompt. Sampling fields have the names and defaults of the proto."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    min_tokens: int
    max_tokens: int
    ignore_eos: bool
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    request_id: str | None
    model: str | None
    seed: int | None
    cache_salt: str
    priority: int
    min_tokens_per_s: float | None
    grammar: Grammar | None  # what the answer has to be
    tools: Sequence[Tool] | Sequence[Mapping[str, Any]]  # functions, as OpenAI's clients write them
    tool_choice: str | Mapping[str, Any]  # auto, none, required, or an object that names one
    parallel_tool_calls: bool
    spec: SpecOptions
    timeout_s: float | None  # the deadline of the call


def request_of(prompt: Prompt, options: Options) -> tuple[pb.GenerateRequest, float | None]:
    """The message, and the deadline of its call in seconds. Raises InvalidField."""
    fields: dict[str, Any] = dict(options)
    for name in fields:
        if name not in Options.__optional_keys__:
            raise InvalidField(name, "is no known option")
    timeout_s = _timeout_of(fields.pop("timeout_s", None))
    names = set(GenerateCall.__struct_fields__)
    rest = {name: fields.pop(name) for name in list(fields) if name in names - {"tools"}}
    if not isinstance(rest.get("spec", SpecOptions()), SpecOptions):
        raise InvalidField("spec", f"is {rest['spec']!r}; it must be a SpecOptions")
    if isinstance(fields.get("stop"), str):
        raise InvalidField("stop", "is a string; it must be a sequence of strings")
    try:
        use = _tool_use_of(fields)
        call = GenerateCall(
            prompt=_prompt_of(prompt),
            chat=ChatOptions(tools=() if use is None else use.tools),
            tools=use,
            sampling=SamplingParams(**fields),
            **rest,
        )
        return to_proto.request_of(call, fields), timeout_s
    except (TypeError, ValueError) as error:
        raise InvalidField("options", str(error)) from error


def _prompt_of(prompt: Prompt) -> str | list[int] | list[ChatMessage]:
    if isinstance(prompt, bytes | bytearray | memoryview | Set):  # integers perhaps, never tokens
        raise InvalidField("prompt", _NO_PROMPT.format(type(prompt).__name__))
    if isinstance(prompt, str):
        return prompt
    try:
        items = iter(prompt)
    except TypeError as error:
        raise InvalidField("prompt", _NO_PROMPT.format(type(prompt).__name__)) from error
    return [_message_of(item) if isinstance(item, Mapping) else item for item in items]  # type: ignore[return-value]


def _message_of(item: Mapping[str, Any]) -> ChatMessage:
    # As clients of OpenAI's API write one.
    if not {"role", "content"} <= item.keys() <= _OF_MESSAGES:
        known = ", ".join(map(str, item)) or "nothing"
        raise InvalidField("chat", f"has a message of {known}; one has role and content")
    role, content = item["role"], item["content"]
    calls = tool_calls_of(item.get("tool_calls"), role, "chat")
    # Answers that are calls alone have none.
    text: Any = "" if content is None and calls else content
    return ChatMessage(role, text, calls, item.get("tool_call_id"), item.get("name"))


def _tool_use_of(fields: dict[str, Any]) -> ToolUse | None:
    """What may be called, by the options of that, which are taken out of `fields`."""
    given = {name: fields.pop(name, None) for name in ("tools", "tool_choice")}
    is_parallel = fields.pop("parallel_tool_calls", True)
    tools = [
        tool if isinstance(tool, Tool) else tools_of([dict(tool)], first=index)[0]
        for index, tool in enumerate(given["tools"] or ())
    ]
    offer = Offer(tool_choice=given["tool_choice"], parallel_tool_calls=is_parallel)
    return tool_use_of(offer, tools)


def _timeout_of(timeout_s: object) -> float | None:
    """For grpc, to which all that is as good as none must be None."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool | str) or not isinstance(timeout_s, SupportsFloat):
        raise InvalidField("timeout_s", f"{timeout_s!r} is no number of seconds")
    try:
        seconds = float(timeout_s)
    except OverflowError:
        return None
    if math.isnan(seconds):
        raise InvalidField("timeout_s", "is not a number")
    return None if seconds > _LONGEST_TIMEOUT_S else seconds
