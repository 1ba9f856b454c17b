# pyright: strict
"""From bodies to calls: fields of OpenAI's names to ours. Decides nothing but defaults.

A body of several prompts is as many calls.
"""

import re
import secrets
from typing import Any, cast

import msgspec

from specserve.api.call import (
    ChatMessage,
    ChatOptions,
    GenerateCall,
    SpecOptions,
    deadline_of,
    seed_of,
)
from specserve.api.http.bodies import ChatBody, CompletionBody, Message, Prompts, TokenizeBody
from specserve.api.http.structured import grammar_of
from specserve.api.http.tool_bodies import tool_calls_of, tool_use_of, tools_of
from specserve.errors import InvalidField
from specserve.settings.config import DAY_S
from specserve.types import SamplingParams
from specserve.validation import (
    Limits,
    check_num_entries,
    check_prompt_len,
    check_token_ids,
)

MAX_PROMPTS = 256  # of one body
_USUAL_MAX_TOKENS = 16  # of a completion; chats go on until the model ends them
_SAME = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "n", "prompt_logprobs",
)  # fmt: skip
_TOKEN_ID = re.compile("-?[0-9]{1,20}")  # one that is out of range is refused as that, later


def calls_of_completion(
    body: CompletionBody, limits: Limits, defaults: SamplingParams
) -> list[GenerateCall]:
    """One for each prompt. Raises InvalidField, or Unsupported as `call_of_chat` does."""
    sampling = _sampling(body, limits, defaults, usual_max_tokens=_USUAL_MAX_TOKENS)
    sampling = msgspec.structs.replace(sampling, logprobs=body.logprobs)
    if body.echo and body.logprobs is not None:
        most = max(body.logprobs, body.prompt_logprobs or 0)
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=most)
    prompts = _prompts(body.prompt)
    for prompt in prompts:
        if not isinstance(prompt, str):  # an echo decodes it before anybody else looks at it
            check_prompt_len("prompt", len(prompt), limits)  # before millions are looked at
            check_token_ids("prompt", prompt, limits.vocab_size)
    return [_call(body, prompt, sampling, number) for number, prompt in enumerate(prompts)]


def call_of_chat(body: ChatBody, limits: Limits, defaults: SamplingParams) -> GenerateCall:
    """Raises InvalidField, or Unsupported for an answer in a form that is not served."""
    if body.top_logprobs and not body.logprobs:  # 0 is none, as some clients always say
        raise InvalidField("top_logprobs", "needs logprobs: true")
    most, asked = limits.max_logprobs, body.top_logprobs or 0
    if not 0 <= asked <= most:
        raise InvalidField("top_logprobs", f"{asked} is out of range; it must be 0 to {most}")
    if (max_tokens := body.max_completion_tokens) is not None:
        if max_tokens < 1:
            problem = f"{max_tokens} is out of range; it must be at least 1"
            raise InvalidField("max_completion_tokens", problem)
        body = msgspec.structs.replace(body, max_tokens=max_tokens)
    sampling = _sampling(body, limits, defaults, usual_max_tokens=limits.max_model_len)
    logprobs = asked if body.logprobs else None
    sampling = msgspec.structs.replace(sampling, logprobs=logprobs)
    call = _call(body, messages_of(body.messages), sampling, 0)
    options = chat_options(body)
    use = tool_use_of(body, options.tools)
    if use is None:  # a model that may call nothing is told of nothing
        options = msgspec.structs.replace(options, tools=())
    return msgspec.structs.replace(call, chat=options, tools=use)


def messages_of(messages: list[Message]) -> list[ChatMessage]:
    """`developer` is what newer clients call the system."""
    if not messages:
        raise InvalidField("messages", "is empty; it must have at least 1 message")
    return [_message_of(each, f"messages[{index}]") for index, each in enumerate(messages)]


def _message_of(message: Message, where: str) -> ChatMessage:
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(
        role,
        message.text(where),
        tool_calls_of(message.tool_calls, role, where),
        message.tool_call_id,
        message.name,
    )


def chat_options(body: ChatBody | TokenizeBody) -> ChatOptions:
    """How the template writes the conversation. Raises InvalidField."""
    if body.continue_final_message and body.add_generation_prompt:
        # Clients that continue a message seldom say that no other one begins.
        body = msgspec.structs.replace(body, add_generation_prompt=False)
    return ChatOptions(
        begins_answer=body.add_generation_prompt,
        continues_last=body.continue_final_message,
        tools=tools_of(body.tools),
        variables=body.chat_template_kwargs or {},
    )


def _prompts(prompt: Prompts) -> list[str] | list[list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidField("prompt", "is empty; it must have at least 1 token")
    kinds = {type(each) for each in prompt}  # one look at each: there may be millions
    if len(kinds) > 1:
        raise InvalidField("prompt", "holds texts, token ids or lists of these, of one kind each")
    if int in kinds:
        return [cast("list[int]", prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField("prompt", f"has {len(prompt)} prompts; the limit is {MAX_PROMPTS}")
    return cast("list[str] | list[list[int]]", prompt)


def _call(
    body: CompletionBody | ChatBody,
    prompt: str | list[int] | list[ChatMessage],
    sampling: SamplingParams,
    number: int,
) -> GenerateCall:
    """`number` of the body's prompts; seeds and ids differ from prompt to prompt."""
    given: dict[str, Any] = {}
    if body.request_id is not None:
        given["request_id"] = body.request_id + (f"-{number}" if number else "")
    if body.cache_salt is not None:
        given["cache_salt"] = body.cache_salt
    if body.timeout_s is not None:
        if not 0 < body.timeout_s <= DAY_S:
            problem = f"{body.timeout_s:g} must be more than 0 and at most {DAY_S:g} seconds"
            raise InvalidField("timeout_s", problem)
        given["deadline_s"] = deadline_of(body.timeout_s)
    return GenerateCall(
        prompt=prompt,
        sampling=sampling,
        model=body.model,
        seed=seed_of(body.seed, number),
        priority=body.priority,
        skip_special_tokens=body.skip_special_tokens,
        min_tokens_per_s=body.min_tokens_per_s,
        grammar=grammar_of(body),
        spec=SpecOptions(
            mode=body.spec.mode, max_verify_len=body.spec.max_verify_len, return_stats=True
        ),
        **given,
    )


def _sampling(
    body: CompletionBody | ChatBody,
    limits: Limits,
    defaults: SamplingParams,
    *,
    usual_max_tokens: int,
) -> SamplingParams:
    given = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = 0 if body.top_k == -1 else body.top_k  # an old spelling of "off"
    return msgspec.structs.replace(
        defaults,
        max_tokens=usual_max_tokens if body.max_tokens is None else body.max_tokens,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_bias(body.logit_bias or {}),
        ignore_eos=body.ignore_eos,
        **given,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _bias(bias: dict[str, float]) -> dict[int, float]:
    check_num_entries("logit_bias", bias)
    for token_id in bias:
        if not _TOKEN_ID.fullmatch(token_id):
            raise InvalidField("logit_bias", f"has the key {token_id[:64]!r}, which is no token id")
    return {int(token_id): value for token_id, value in bias.items()}


def new_id(prefix: str) -> str:
    """Of an answer, as OpenAI's clients know it."""
    return f"{prefix}-{secrets.token_hex(12)}"
