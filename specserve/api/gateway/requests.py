"""A gateway's request as a call of ours. What is not served is refused by name, never ignored.

Fields of numbers that say nothing when they are 0 mean then what changes no distribution: a gateway
fills in what the model wishes, which `GetModelInfo` tells it.
"""

from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specserve.api.call import ANY_OBJECT, GenerateCall, choice_of, deadline_of, seed_of
from specserve.errors import InvalidField, Unsupported
from specserve.types import Grammar, GrammarKind, SamplingParams
from specserve.validation import (
    MAX_ENTRIES,
    Limits,
    check_num_entries,
    check_prompt_len,
    check_token_ids,
)

# Of the request and of its sampling_params: what is not served, and why.
_REQUEST = {
    "kv_transfer_params": "prefill and decoding are of one worker here",
    "kv_transfer_params_json": "prefill and decoding are of one worker here",
    "mm_inputs": "the models served here read text alone",
    "extra_mm_inputs": "the models served here read text alone",
    "media_refs": "the models served here read text alone",
}
_SAMPLING = {
    "truncate_prompt_tokens": "a prompt is served as it is, or refused",
}
_SAME = (  # under the same names, and 0 means 0
    "top_k", "min_p", "frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos",
)  # fmt: skip
_OPTIONAL = ("temperature", "max_tokens", "logprobs", "prompt_logprobs")


def call_of(
    request: pb.GenerateRequest, time_remaining_s: float | None, limits: Limits
) -> GenerateCall:
    """Raises InvalidField without a prompt, Unsupported for what no worker of ours does."""
    _refuse_unserved("", request, _REQUEST)
    _refuse_unserved("sampling_params.", request.sampling_params, _SAMPLING)
    rank = request.data_parallel_rank
    if rank != 0:
        raise InvalidField("data_parallel_rank", f"{rank} is not served here; 0 is the only one")
    params = request.sampling_params
    return GenerateCall(
        prompt=_prompt_of(request, limits),
        sampling=_sampling_of(params, limits),
        request_id=request.request_id or None,
        seed=seed_of(params.seed if params.HasField("seed") else None),
        deadline_s=deadline_of(time_remaining_s),
        grammar=_grammar_of(params),  # from the first token, whatever grammar_from_first_token says
        skip_special_tokens=params.skip_special_tokens,
    )


def _refuse_unserved(where: str, message: Any, reasons: dict[str, str]) -> None:  # noqa: ANN401
    """Raise Unsupported at the first field of `reasons` that was sent."""
    for field, _ in message.ListFields():
        if field.name in reasons:
            raise Unsupported(f"{where}{field.name}: {reasons[field.name]}")


def _prompt_of(request: pb.GenerateRequest, limits: Limits) -> str | list[int]:
    match request.WhichOneof("input"):
        case "tokenized":
            ids = request.tokenized.input_ids
            check_prompt_len("tokenized.input_ids", len(ids), limits)  # before they become objects
            check_token_ids("tokenized.input_ids", ids, limits.vocab_size)
            return list(ids)
        case "text":
            if request.sampling_params.HasField("prompt_logprobs"):
                # An answer begins with the prompt's first token, which only a tokenized one tells.
                raise Unsupported("sampling_params.prompt_logprobs: needs the input as `tokenized`")
            return request.text
        case _:
            raise InvalidField("input", "is missing; send one of tokenized, text")


def _grammar_of(params: pb.SamplingParams) -> Grammar | None:
    form = params.WhichOneof("constraint")
    field = f"sampling_params.{form}"
    match form:
        case None:
            return None
        case "json_object":
            if not params.json_object:
                raise InvalidField(field, "is false; leave it out, or send true")
            return Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, field)
        case "choice":
            return choice_of(list(params.choice.choices), field)
        case _:
            return Grammar(GrammarKind(form), getattr(params, form), field)


def _sampling_of(params: pb.SamplingParams, limits: Limits) -> SamplingParams:
    for name in MAX_ENTRIES:
        check_num_entries(name, getattr(params, name))
    given = {name: getattr(params, name) for name in _SAME}
    given |= {name: getattr(params, name) for name in _OPTIONAL if params.HasField(name)}
    given.setdefault("max_tokens", limits.max_model_len)  # until the model ends the answer
    return SamplingParams(
        top_p=params.top_p or 1.0,
        repetition_penalty=params.repetition_penalty or 1.0,
        n=params.n or 1,
        logit_bias=dict(params.logit_bias),
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        **given,
    )
