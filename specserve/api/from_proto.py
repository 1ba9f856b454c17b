"""Protobuf messages to our own records, field by field. Decides nothing."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from specserve.api import events
from specserve.api.call import (
    ANY_OBJECT,
    ChatMessage,
    ChatOptions,
    GenerateCall,
    SpecOptions,
    choice_of,
    deadline_of,
)
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.tool_messages import (
    message_of,
    pieces_of,
    tool_use_of,
    tools_of,
)
from specserve.errors import InvalidField
from specserve.types import (
    FinishReason,
    Grammar,
    GrammarKind,
    Logprobs,
    SamplingParams,
    TokenOrigin,
)
from specserve.validation import MAX_ENTRIES, Limits, check_num_entries, check_prompt_len

ORIGINS = {
    TokenOrigin.PLAIN: pb.TOKEN_ORIGIN_PLAIN,
    TokenOrigin.DRAFTED: pb.TOKEN_ORIGIN_DRAFTED,
    TokenOrigin.BONUS: pb.TOKEN_ORIGIN_BONUS,
    TokenOrigin.RECOVERY: pb.TOKEN_ORIGIN_RECOVERY,
}
_ORIGIN_OF = {proto: origin for origin, proto in ORIGINS.items()}
_SCALARS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "max_tokens", "ignore_eos", "n", "logprobs",
    "prompt_logprobs",
)  # fmt: skip
_OPTIONAL = ("request_id", "model", "seed", "cache_salt", "priority", "min_tokens_per_s")

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

# --- requests, on the server ------------------------------------------------------------------


def call_of(
    request: pb.GenerateRequest,
    time_remaining_s: float | None,
    limits: Limits,
    defaults: SamplingParams,
    *,
    is_streamed: bool = False,
) -> GenerateCall:
    """The call a request message asks for; raises InvalidField without a prompt.

    `defaults` are the sampling parameters that it leaves unset.
    """
    tools = tools_of(request)
    use = tool_use_of(request, tools, is_streamed=is_streamed)
    spec = _present(request.spec, ("mode", "max_verify_len", "return_stats"))
    optional = _present(request, _OPTIONAL)
    return GenerateCall(
        prompt=_prompt_of(request, limits),
        chat=ChatOptions(tools=() if use is None else tools),
        tools=use,
        sampling=_sampling_of(request.sampling, defaults),
        deadline_s=deadline_of(time_remaining_s),
        spec=SpecOptions(**spec),
        grammar=_grammar_of(request),
        **optional,
    )


def _present(message: Any, names: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
    """Fields that were sent; absent ones keep the defaults of our own records."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _prompt_of(request: pb.GenerateRequest, limits: Limits) -> str | list[int] | list[ChatMessage]:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            ids = request.token_ids.ids
            check_prompt_len("token_ids", len(ids), limits)  # before millions become objects
            return list(ids)
        case "chat":
            turns = request.chat.messages
            if len(turns) >= limits.max_model_len:
                limit = f"{limits.max_model_len - 1}, at a token each"
                raise InvalidField("chat", f"has {len(turns)} messages; the limit is {limit}")
            return [message_of(turn) for turn in turns]
        case _:
            raise InvalidField("prompt", "is missing; send one of text, token_ids, chat")


def _grammar_of(request: pb.GenerateRequest) -> Grammar | None:
    if not request.HasField("structured_output"):
        return None
    wanted = request.structured_output
    match form := wanted.WhichOneof("form"):
        case None:
            forms = "json_object, json_schema, regex, grammar, choice, structural_tag"
            raise InvalidField("structured_output", f"is empty; send one of {forms}")
        case "json_object":
            field = "structured_output.json_object"
            if not wanted.json_object:
                raise InvalidField(field, "is false; leave structured_output out, or send true")
            return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, field)
        case "choice":
            return choice_of(list(wanted.choice.texts), "structured_output.choice")
        case _:
            return Grammar(GrammarKind(form), getattr(wanted, form), f"structured_output.{form}")


def _sampling_of(sampling: pb.SamplingParams, defaults: SamplingParams) -> SamplingParams:
    for name in MAX_ENTRIES:
        check_num_entries(name, getattr(sampling, name))
    scalars = _present(sampling, _SCALARS)
    if scalars.get("top_k") == -1:  # an old spelling of "off"
        scalars["top_k"] = 0
    return msgspec.structs.replace(
        defaults,
        logit_bias=dict(sampling.logit_bias),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        **scalars,
    )


# --- responses, on the client -----------------------------------------------------------------


def struct_of(message: Any, kind: type[_StructT]) -> _StructT:  # noqa: ANN401 - any message
    """A record whose fields are all fields of `message` under the same names.

    One that is optional there and not sent keeps the record's default.
    """
    names = [name for name in kind.__struct_fields__ if not _is_unset(message, name)]
    return msgspec.convert({name: _plain(getattr(message, name)) for name in names}, kind)


def _is_unset(message: Any, name: str) -> bool:  # noqa: ANN401
    field = message.DESCRIPTOR.fields_by_name[name]
    return field.has_presence and field.message_type is None and not message.HasField(name)


def _plain(value: Any) -> object:  # noqa: ANN401 - a field of any message
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Message):
        return {field.name: _plain(part) for field, part in value.ListFields()}
    return dict(value) if isinstance(value, Mapping) else [_plain(part) for part in value]


def prompt_info_of(info: pb.PromptInfo) -> events.PromptInfo:
    return events.PromptInfo(
        request_id=info.request_id,
        num_prompt_tokens=info.num_prompt_tokens,
        prompt_logprobs=[_logprobs_of(position) for position in info.prompt_logprobs],
    )


def merge_prompt(known: events.PromptInfo | None, more: pb.PromptInfo) -> events.PromptInfo:
    """Prompt logprobs of a long prompt come in several messages, in order."""
    info = prompt_info_of(more)
    if known is None:
        return info
    logprobs = known.prompt_logprobs + info.prompt_logprobs
    return msgspec.structs.replace(info, prompt_logprobs=logprobs)


def delta_of(delta: pb.TokenDelta) -> events.TokenDelta:
    """A delta of a stream."""
    return events.TokenDelta(
        cache_hit=delta.cache_hit if delta.HasField("cache_hit") else None,
        calls=pieces_of(delta.tool_calls),
        **_tokens_of(delta),
    )


def sample_of(sample: pb.Sample) -> events.TokenDelta:
    """A whole sample of a unary response, as the one delta it amounts to."""
    return events.TokenDelta(**_tokens_of(sample))


def _tokens_of(message: pb.TokenDelta | pb.Sample) -> dict[str, Any]:
    return {
        "sample_index": message.sample_index,
        "token_ids": list(message.token_ids),
        "text": message.text,
        "origins": [_ORIGIN_OF[origin] for origin in message.origins],
        "logprobs": [_logprobs_of(position) for position in message.logprobs] or None,
    }


def _logprobs_of(position: pb.TokenLogprobs) -> Logprobs:
    return Logprobs(
        position.token_id,
        position.logprob,
        position.rank,
        [top.token_id for top in position.top],
        [top.logprob for top in position.top],
        position.token_bytes,
        [top.token_bytes for top in position.top],
    )


def finished_of(finished: pb.Finished) -> events.Finished:
    spec = finished.spec if finished.HasField("spec") else None
    return events.Finished(
        samples=[
            events.SampleEnd(
                sample_index=end.sample_index,
                finish_reason=FinishReason(end.finish_reason),
                **_present(end, ("stop_string", "stop_token_id")),
            )
            for end in finished.samples
        ],
        usage=struct_of(finished.usage, events.Usage),
        timings=struct_of(finished.timings, events.Timings),
        spec=None if spec is None else _spec_record_of(spec),
    )


def _spec_record_of(spec: pb.SpecRecord) -> events.SpecRecord:
    return events.SpecRecord(
        num_drafts=spec.num_drafts,
        num_draft_tokens=spec.num_draft_tokens,
        num_accepted_tokens=spec.num_accepted_tokens,
        num_accepted_tokens_per_pos=list(spec.num_accepted_tokens_per_pos),
    )
