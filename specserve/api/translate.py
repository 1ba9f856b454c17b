"""Protobuf messages to and from our own records, field by field. Decides nothing."""

import time
from typing import Any

from specserve.api import events
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.session import GenerateCall, SpecOptions
from specserve.api.tokenizer import ChatMessage
from specserve.errors import InvalidField
from specserve.types import Load, Logprobs, Ready, SamplingParams, TokenOrigin

_ORIGINS = {
    TokenOrigin.PLAIN: pb.TOKEN_ORIGIN_PLAIN,
    TokenOrigin.DRAFTED: pb.TOKEN_ORIGIN_DRAFTED,
    TokenOrigin.BONUS: pb.TOKEN_ORIGIN_BONUS,
}
_SCALARS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "max_tokens", "ignore_eos", "n", "logprobs",
    "prompt_logprobs",
)  # fmt: skip


def call_of(
    request: pb.GenerateRequest, time_remaining_s: float | None, max_prompt_tokens: int
) -> GenerateCall:
    """The call a request message asks for; raises InvalidField without a prompt."""
    spec = _present(request.spec, ("mode", "max_verify_len", "return_stats"))
    optional = _present(request, ("request_id", "model", "seed", "cache_salt", "priority"))
    deadline_s = None if time_remaining_s is None else time.monotonic() + time_remaining_s
    return GenerateCall(
        prompt=_prompt_of(request, max_prompt_tokens),
        sampling=_sampling_of(request.sampling),
        deadline_s=deadline_s,
        spec=SpecOptions(**spec),
        **optional,
    )


def _present(message: Any, names: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
    """Fields that were sent; absent ones keep the defaults of our own records."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _prompt_of(
    request: pb.GenerateRequest, max_prompt_tokens: int
) -> str | list[int] | list[ChatMessage]:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            ids = request.token_ids.ids
            if len(ids) > max_prompt_tokens:  # before millions of integers become objects
                raise InvalidField(
                    "token_ids", f"has {len(ids)} tokens; the limit is {max_prompt_tokens}"
                )
            return list(ids)
        case "chat":
            return [ChatMessage(turn.role, turn.content) for turn in request.chat.messages]
        case _:
            raise InvalidField("prompt", "is missing; send one of text, token_ids, chat")


def _sampling_of(sampling: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        logit_bias=dict(sampling.logit_bias),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        **_present(sampling, _SCALARS),
    )


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
        origins=[_ORIGINS[origin] for origin in delta.origins],
        cache_hit=delta.cache_hit,
        logprobs=map(_logprobs_of, delta.logprobs or ()),
    )


def _logprobs_of(position: Logprobs) -> pb.TokenLogprobs:
    top = zip(position.top_ids, position.top_logprobs, strict=True)
    return pb.TokenLogprobs(
        token_id=position.token_id,
        logprob=position.logprob,
        rank=position.rank,
        top=[pb.TopToken(token_id=token_id, logprob=logprob) for token_id, logprob in top],
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


def _spec_record_of(spec: events.SpecRecord) -> pb.SpecRecord:
    return pb.SpecRecord(
        num_drafts=spec.num_drafts,
        num_draft_tokens=spec.num_draft_tokens,
        num_accepted_tokens=spec.num_accepted_tokens,
        num_accepted_tokens_per_pos=spec.num_accepted_tokens_per_pos,
    )


class ResponseBuilder:
    """Collects the events of a stream into the one response of the unary call."""

    def __init__(self) -> None:
        self._response = pb.GenerateResponse()
        self._samples: dict[int, pb.Sample] = {}
        self._texts: dict[int, list[str]] = {}

    def add(self, event: events.Event) -> None:
        match event:
            case events.PromptInfo():
                info = prompt_of(event)
                self._response.request_id = info.request_id
                # Merging appends the further logprobs and repeats the equal scalars.
                self._response.prompt.MergeFrom(info)
            case events.TokenDelta():
                sample = self._samples.setdefault(event.sample_index, pb.Sample())
                delta = _delta_of(event)
                sample.token_ids.extend(delta.token_ids)
                sample.origins.extend(delta.origins)
                sample.logprobs.extend(delta.logprobs)
                self._texts.setdefault(event.sample_index, []).append(event.text)
            case events.Finished():
                self._response.finished.CopyFrom(finished_of(event))

    def build(self) -> pb.GenerateResponse:
        for index in range(len(self._response.finished.samples)):
            sample = self._samples.get(index, pb.Sample())
            sample.sample_index = index
            sample.text = "".join(self._texts.get(index, ()))
            self._response.samples.append(sample)
        return self._response


def model_info_of(ready: Ready, has_chat_template: bool) -> pb.GetModelInfoResponse:
    names = (
        "model", "model_type", "vocab_size", "max_model_len", "num_layers", "num_params",
        "ballast_params", "dtype", "device", "tensor_parallel", "deterministic", "eos_token_ids",
    )  # fmt: skip
    fields = {name: getattr(ready, name) for name in names}
    return pb.GetModelInfoResponse(has_chat_template=has_chat_template, **fields)


def load_of(
    load: Load, *, num_in_flight: int, num_malformed_frames: int, draining: bool
) -> pb.GetLoadResponse:
    names = (
        "num_running", "num_waiting", "num_free_blocks", "num_blocks", "num_cached_blocks",
        "num_preemptions", "num_rounds", "num_prompt_tokens", "num_cached_tokens",
        "num_generated_tokens", "round_s",
    )  # fmt: skip
    fields = {name: getattr(load, name) for name in names}
    return pb.GetLoadResponse(
        num_in_flight=num_in_flight,
        num_malformed_frames=num_malformed_frames,
        draining=draining,
        **fields,
    )
