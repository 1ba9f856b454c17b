"""Our own records to protobuf messages, field by field. Decides nothing."""

import operator
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor

from specserve.api import events
from specserve.api.call import ChatMessage, GenerateCall
from specserve.api.from_proto import ORIGINS
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.tool_messages import (
    fields_of,
    message_of_call,
    messages_of_pieces,
    turn_fields,
)
from specserve.api.tools.tool import ToolCallDelta, calls_of
from specserve.errors import Exhausted, InvalidField
from specserve.settings.config import ResolvedConfig
from specserve.types import (
    DRAFT_BATCH_SIZE,
    Grammar,
    GrammarKind,
    Load,
    Logprobs,
    Ready,
    SamplingParams,
)
from specserve.validation import MAX_LOGPROBS, MAX_SAMPLES, MAX_TOP_K, OR_OFF

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
# What a service takes of fields whose types hold more.
_TAKEN = {
    "n": f"1 to {MAX_SAMPLES}",
    "logprobs": f"0 to {MAX_LOGPROBS}",
    "prompt_logprobs": f"0 to {MAX_LOGPROBS}",
    "max_tokens": f"1 to {2**63 - 1}",
    "min_tokens": "0 to max_tokens",
    "top_k": f"0 to {MAX_TOP_K}{OR_OFF}",
}
# Names of fields that hold token ids, by those they have in their messages.
_TOKEN_IDS = {"ids": "token_ids", "stop_token_ids": "stop_token_ids", "logit_bias": "logit_bias"}
# Fields of `Load` that tell how draft processes fare.
_DRAFTS = ("num_draft_processes", "num_drafts_attached", "speculation_regime")

# --- requests, on the client ------------------------------------------------------------------


def request_of(call: GenerateCall, given: Collection[str]) -> pb.GenerateRequest:
    """The message for a call: of its sampling fields those that were `given`, however usual their
    values, since the server's defaults may be others; of the rest what is not the default.

    Raises:
        InvalidField: a value that its protobuf field cannot hold.
    """
    values = {name: getattr(call.sampling, name) for name in given}
    sampling: dict[str, Any] = msgspec.to_builtins(values, builtin_types=(), str_keys=False)
    spec: dict[str, Any] = msgspec.structs.asdict(call.spec)
    fields: dict[str, Any] = {
        "request_id": call.request_id,
        "model": call.model,
        "seed": call.seed,
        "cache_salt": call.cache_salt or None,
        "priority": call.priority or None,
        "min_tokens_per_s": call.min_tokens_per_s,
        "structured_output": None if call.grammar is None else _structured_output(call.grammar),
        "sampling": _message(pb.SamplingParams, sampling),
        "spec": _message(pb.SpecOptions, spec),
        **fields_of(call.tools),
    }
    return _message(pb.GenerateRequest, fields | _prompt_of(call.prompt))


def _structured_output(grammar: Grammar) -> pb.StructuredOutput:
    if grammar.kind is GrammarKind.CHOICE:
        texts = msgspec.json.decode(grammar.text, type=list[str])
        return _message(pb.StructuredOutput, {"choice": pb.Choices(texts=texts)})
    return _message(pb.StructuredOutput, {grammar.kind.value: grammar.text})


def abort_of(request_id: str) -> pb.AbortRequest:
    """Raises InvalidField for what is no id."""
    if not isinstance(request_id, str):  # for anybody who calls: None would be the empty one
        raise InvalidField("request_id", f"{request_id!r} is no string")
    return _message(pb.AbortRequest, {"request_id": request_id})


def _message(kind: Any, fields: dict[str, Any]) -> Any:  # noqa: ANN401 - any kind of message
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            _require_fit(kind, name, value)
        raise


def _require_fit(kind: Any, name: str, value: object) -> None:  # noqa: ANN401
    try:
        kind(**{name: value})
    except UnicodeEncodeError as error:
        raise InvalidField("prompt" if name == "text" else name, "is not valid Unicode") from error
    except (TypeError, ValueError) as error:
        if name in _TOKEN_IDS and isinstance(value, Iterable):
            _require_token_ids(_TOKEN_IDS[name], value)
        of_type = kind.DESCRIPTOR.fields_by_name[name].type
        if of_type == FieldDescriptor.TYPE_STRING and not isinstance(value, str | Collection):
            raise InvalidField(name, f"{value!r} is no string") from error
        limits = _INTEGERS.get(of_type)
        if limits is not None and isinstance(value, bool | float | str):
            raise InvalidField(name, f"{value!r} is no integer") from error
        if limits is None:  # of another type: protobuf's own words say more
            raise InvalidField(name, str(error)) from error
        taken = _TAKEN.get(name, f"{limits[0]} to {limits[1]}")
        raise InvalidField(name, f"{value!r} is out of range; it must be {taken}") from error


def _require_token_ids(field: str, items: Iterable[object]) -> None:
    """Raise InvalidField at the first that is no token id of any model."""
    for item in items:
        token_id = _token_id_of(field, item)
        if not 0 <= token_id < 2**32:
            problem = f"token id {token_id} is out of range; it must be 0 to vocab_size - 1"
            raise InvalidField(field, problem)


def _prompt_of(prompt: str | list[int] | list[ChatMessage]) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    if any(isinstance(item, ChatMessage) for item in prompt):
        return {"chat": pb.ChatMessages(messages=[_turn_of(item) for item in prompt])}
    token_ids = [_token_id_of("token_ids", item) for item in prompt]
    return {"token_ids": _message(pb.TokenIds, {"ids": token_ids})}


def _turn_of(item: object) -> pb.ChatMessage:
    if not isinstance(item, ChatMessage):
        raise _stray("chat", item, "ChatMessage")
    return _message(pb.ChatMessage, turn_fields(item))


def _token_id_of(field: str, item: Any) -> int:  # noqa: ANN401 - or numpy's integers
    if isinstance(item, bool):  # an integer to Python, and never meant as a token
        raise _stray(field, item, "integers")
    try:
        return operator.index(item)
    except TypeError as error:
        raise _stray(field, item, "integers") from error


def _stray(field: str, item: object, wanted: str) -> InvalidField:
    return InvalidField(field, f"has an item of type {type(item).__name__}; all must be {wanted}")


# --- responses, on the server -----------------------------------------------------------------


def stream_response_of(event: events.Event) -> pb.GenerateStreamResponse:
    """One message of a stream."""
    match event:
        case events.TokenDelta():
            return pb.GenerateStreamResponse(token_delta=_delta_of(event))
        case events.PromptInfo():
            return pb.GenerateStreamResponse(prompt=prompt_of(event))
        case events.Finished():
            return pb.GenerateStreamResponse(finished=finished_of(event))


def prompt_of(info: events.PromptInfo) -> pb.PromptInfo:
    return pb.PromptInfo(
        request_id=info.request_id,
        num_prompt_tokens=info.num_prompt_tokens,
        prompt_logprobs=map(_logprobs_of, info.prompt_logprobs),
    )


def _delta_of(delta: events.TokenDelta) -> pb.TokenDelta:
    return pb.TokenDelta(
        sample_index=delta.sample_index,
        token_ids=delta.token_ids,
        text=delta.text,
        origins=[ORIGINS[origin] for origin in delta.origins],
        cache_hit=delta.cache_hit,
        logprobs=map(_logprobs_of, delta.logprobs or ()),
        tool_calls=messages_of_pieces(delta.calls),
    )


def _logprobs_of(position: Logprobs) -> pb.TokenLogprobs:
    top = zip(position.top_ids, position.top_logprobs, position.top_bytes, strict=True)
    return pb.TokenLogprobs(
        token_id=position.token_id,
        logprob=position.logprob,
        rank=position.rank,
        token_bytes=position.token_bytes,
        top=[pb.TopToken(token_id=t, logprob=logprob, token_bytes=b) for t, logprob, b in top],
    )


def finished_of(finished: events.Finished) -> pb.Finished:
    usage, timings, spec = finished.usage, finished.timings, finished.spec
    return pb.Finished(
        samples=[
            pb.SampleEnd(
                sample_index=end.sample_index,
                finish_reason=end.finish_reason.value,
                stop_string=end.stop_string,
                stop_token_id=end.stop_token_id,
            )
            for end in finished.samples
        ],
        usage=pb.Usage(
            num_prompt_tokens=usage.num_prompt_tokens,
            num_cached_tokens=usage.num_cached_tokens,
            num_generated_tokens=usage.num_generated_tokens,
        ),
        timings=pb.Timings(
            queue_s=timings.queue_s,
            prefill_s=timings.prefill_s,
            time_to_first_token_s=timings.time_to_first_token_s,
            decode_s=timings.decode_s,
            total_s=timings.total_s,
        ),
        spec=None if spec is None else _spec_record_of(spec),
    )


def spec_stats_of(load: Load) -> pb.SpecStats:
    """What speculation has achieved since the target started."""
    names = (
        "uptime_s", "num_rounds", "num_drafts", "num_accepted_tokens", "num_lookups", "num_hits",
        "bytes_sent", "bytes_received", "num_broken_laws", "wait_s", "num_decode_rounds", "draft_s",
        "forward_s", "num_stand_in_draft_tokens", "num_stand_in_accepted_tokens",
        "num_lookups_after_hit", "num_hits_after_hit", "num_prepared_blocks", "num_misses",
        "num_rounds_by_mode", "num_waits", "step_time_error", *_DRAFTS,
    )  # fmt: skip
    return pb.SpecStats(
        num_draft_tokens=load.num_drafted_tokens,
        num_accepted_tokens_per_pos=load.num_accepted_per_position,
        num_waves=load.num_draft_batches,
        num_late_waves=load.num_late_draft_batches,
        wave_s=load.draft_batch_s,
        verify_budget_tokens=int(load.verify_budget.total),
        calibration=[
            pb.PositionCalibration(**msgspec.structs.asdict(each)) for each in load.calibration
        ],
        drafts=[pb.DraftStatus(**msgspec.structs.asdict(each)) for each in load.drafts],
        **{name: getattr(load, name) for name in names},
    )


def spec_config_of(ready: Ready, config: ResolvedConfig) -> pb.GetSpecConfigResponse:
    """What speculation is configured to do; nothing of draft processes where there are none."""
    response = pb.GetSpecConfigResponse(
        mode=ready.speculation,
        gamma=ready.gamma,
        drafter=ready.drafter,
        verification=ready.verification,
        num_draft_processes=config.num_draft_processes,
    )
    if config.num_draft_processes:
        response.fan_out = config.speculation.fan_out
        response.wave, response.fan_out_rule = DRAFT_BATCH_SIZE, "measured"
        response.miss_policy = config.speculation.miss_policy
    return response


def _spec_record_of(spec: events.SpecRecord) -> pb.SpecRecord:
    return pb.SpecRecord(
        num_drafts=spec.num_drafts,
        num_draft_tokens=spec.num_draft_tokens,
        num_accepted_tokens=spec.num_accepted_tokens,
        num_accepted_tokens_per_pos=spec.num_accepted_tokens_per_pos,
    )


class ResponseBuilder:
    """Collects the events of a stream into the one response of the unary call."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0  # at least
        self._response = pb.GenerateResponse()
        self._samples: dict[int, pb.Sample] = {}
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[int, list[ToolCallDelta]] = {}

    def add(self, event: events.Event) -> None:
        """Raises `Exhausted` once the response is sure to be too large to be sent.

        Else a request would be decoded to its end for nothing. What is counted is what the answer
        has of each event; the few bytes around it `build` sees.
        """
        match event:
            case events.PromptInfo():
                info = prompt_of(event)
                self._response.request_id = info.request_id
                # Merging appends the further logprobs and repeats the equal scalars.
                self._response.prompt.MergeFrom(info)
                self._count(pb.PromptInfo(prompt_logprobs=info.prompt_logprobs).ByteSize())
            case events.TokenDelta():
                sample = self._samples.setdefault(event.sample_index, pb.Sample())
                delta = _delta_of(event)
                sample.token_ids.extend(delta.token_ids)
                sample.origins.extend(delta.origins)
                sample.logprobs.extend(delta.logprobs)
                self._texts.setdefault(event.sample_index, []).append(event.text)
                self._calls.setdefault(event.sample_index, []).extend(event.calls)
                self._count(_content_bytes(delta))
            case events.Finished():
                self._response.finished.CopyFrom(finished_of(event))

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._refuse_if_more(self._num_bytes)

    def _refuse_if_more(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise Exhausted(
                f"max_message_bytes: the answer is larger than {self._max_bytes} bytes; "
                "ask for a stream, or for fewer tokens, samples or logprobs"
            )

    def build(self) -> pb.GenerateResponse:
        """The whole of it. Raises `Exhausted` if it is too large to be sent."""
        for index in range(len(self._response.finished.samples)):
            sample = self._samples.get(index, pb.Sample())
            sample.sample_index = index
            sample.text = "".join(self._texts.get(index, ()))
            calls = calls_of(self._calls.get(index, ()))
            sample.tool_calls.extend(map(message_of_call, calls))
            self._response.samples.append(sample)
        self._refuse_if_more(self._response.ByteSize())
        return self._response


def _content_bytes(delta: pb.TokenDelta) -> int:
    """Of a delta: what an answer holds that is made of it, less the heads of fields."""
    ids = sum(max(1, -(-token_id.bit_length() // 7)) for token_id in delta.token_ids)
    logprobs = pb.Sample(logprobs=delta.logprobs).ByteSize() if delta.logprobs else 0
    calls = sum(len(call.arguments.encode()) for call in delta.tool_calls)
    return len(delta.text.encode()) + calls + ids + len(delta.origins) + logprobs


def model_info_of(
    ready: Ready, has_chat_template: bool, defaults: SamplingParams
) -> pb.GetModelInfoResponse:
    names = (
        "model", "model_type", "vocab_size", "max_model_len", "num_layers", "num_params",
        "ballast_params", "dtype", "half_weights", "kv_dtype", "device", "tensor_parallel",
        "deterministic", "cuda_graphs", "backend", "eos_token_ids",
    )  # fmt: skip
    fields = {name: getattr(ready, name) for name in names}
    ours = msgspec.structs.asdict(SamplingParams())
    found = msgspec.structs.asdict(defaults)
    changed = {name: value for name, value in found.items() if value != ours[name]}
    return pb.GetModelInfoResponse(
        has_chat_template=has_chat_template,
        default_sampling=pb.SamplingParams(**changed),
        **fields,
    )


def load_of(
    load: Load, *, age_s: float, num_in_flight: int, num_malformed_frames: int, draining: bool
) -> pb.GetLoadResponse:
    names = (
        "num_running", "num_waiting", "num_free_blocks", "num_blocks", "num_cached_blocks",
        "num_preemptions", "num_rounds", "num_prompt_tokens", "num_cached_tokens",
        "num_generated_tokens", "round_s", "uptime_s", *_DRAFTS,
    )  # fmt: skip
    fields = {name: getattr(load, name) for name in names}
    return pb.GetLoadResponse(
        report_age_s=age_s,
        num_in_flight=num_in_flight,
        num_malformed_frames=num_malformed_frames,
        draining=draining,
        **fields,
    )
