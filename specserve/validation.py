# pyright: strict
"""The door: every field of a request against its limit, before anything is allocated for it.

Scalars come first and sizes before contents, so an absurd request costs microseconds. What passes
here can be served by the engine without another check. Knows no queues and no memory: whether there
is room now is the scheduler's question.
"""

from collections.abc import Collection, Sized

import msgspec

from specserve.errors import InvalidField
from specserve.types import Request, SamplingParams

MAX_TEMPERATURE = 100.0
MIN_REPETITION_PENALTY = 0.01  # below, logits overflow
MAX_REPETITION_PENALTY = 10.0
MAX_ENTRIES = {"stop": 16, "stop_token_ids": 64, "logit_bias": 1024}
MAX_STOP_CHARS = 256
MAX_ID_CHARS = 256  # request_id and cache_salt
MAX_TOP_K = 2**31 - 1
MAX_SAMPLES = 64  # of n
MAX_LOGPROBS = 20  # of logprobs and prompt_logprobs
MAX_TOKENS_PER_S = 1e6  # of min_tokens_per_s
OR_OFF = " (or -1, which means 0)"  # of top_k, to clients


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the served model allows, and what is the same for all."""

    vocab_size: int
    max_model_len: int  # tokens, prompt and answer
    max_samples: int = MAX_SAMPLES
    max_logprobs: int = MAX_LOGPROBS
    fills_pool: bool = False  # max_model_len is all that the KV pool holds

    @property
    def context(self) -> str:
        """`max_model_len` in words, with what to raise for more where that is something else."""
        why = ", all that engine.kv_memory holds" if self.fills_pool else ""
        return f"max_model_len {self.max_model_len}{why}"


def validate_request(request: Request, limits: Limits) -> Request:
    """The request as it will be served; raises `InvalidField` at the first field out of range.

    A prompt must leave room for one token. `max_tokens` beyond the room it leaves is clamped to
    it, not refused: asking for more than fits is the usual way to say "until the end". `min_tokens`
    beyond it is refused, as vLLM does: a minimum is a promise. What this returns passes again
    unchanged, for the target checks it a second time.
    """
    validate_sampling(request.sampling, limits)
    _check_length("request_id", request.request_id, 1, MAX_ID_CHARS)
    _check_printable("request_id", request.request_id)  # messages and logs quote it
    _check_length("cache_salt", request.cache_salt, 0, MAX_ID_CHARS)
    _check_int("seed", request.seed, 0, 2**64 - 1)
    _check_int("priority", request.priority, -(2**31), 2**31 - 1)  # as wide as gRPC has it
    if request.deadline_s is not None and not abs(request.deadline_s) < float("inf"):
        raise InvalidField("deadline_s", f"{request.deadline_s} is not a finite time")
    if request.min_tokens_per_s is not None:
        pace = request.min_tokens_per_s
        _check_float("min_tokens_per_s", pace, 0.0, MAX_TOKENS_PER_S, above=True)
    room = limits.max_model_len - len(request.prompt_token_ids)
    if not request.prompt_token_ids:
        raise InvalidField("prompt", "is empty; it must have at least 1 token")
    check_prompt_len("prompt", len(request.prompt_token_ids), limits)
    of_what = f", which the prompt leaves of {limits.context}"
    _check_int("min_tokens", request.sampling.min_tokens, 0, room, of_what)
    check_token_ids("token_ids", request.prompt_token_ids, limits.vocab_size)
    if request.sampling.max_tokens <= room:
        return request
    sampling = msgspec.structs.replace(request.sampling, max_tokens=room)
    return msgspec.structs.replace(request, sampling=sampling)


def check_prompt_len(field: str, num_tokens: int, limits: Limits) -> None:
    """Raise `InvalidField` naming `field` unless so long a prompt leaves room for one token."""
    if num_tokens >= limits.max_model_len:
        limit = f"{limits.max_model_len - 1}, which leaves 1 of {limits.context}"
        raise InvalidField(field, f"has {num_tokens} tokens; the limit is {limit}")


def check_num_entries(field: str, values: Sized) -> None:
    """Raise `InvalidField` naming `field`, one of MAX_ENTRIES, if there are too many of them.

    The edge asks this of a message, before its entries become objects.
    """
    if len(values) > (highest := MAX_ENTRIES[field]):
        raise InvalidField(field, f"has {len(values)} entries; the limit is {highest}")


def validate_sampling(params: SamplingParams, limits: Limits) -> None:
    """Raise `InvalidField` at the first parameter out of range; needs no prompt yet."""
    _check_int("n", params.n, 1, limits.max_samples)
    _check_int("max_tokens", params.max_tokens, 1, None)
    _check_int("min_tokens", params.min_tokens, 0, params.max_tokens, " (max_tokens)")
    if params.logprobs is not None:
        _check_int("logprobs", params.logprobs, 0, limits.max_logprobs)
    if params.prompt_logprobs is not None:
        _check_int("prompt_logprobs", params.prompt_logprobs, 0, limits.max_logprobs)
    # top_k = -1, an old spelling of "off", is for the API's edge to translate.
    _check_int("top_k", params.top_k, 0, MAX_TOP_K, OR_OFF)
    _check_float("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    _check_float("top_p", params.top_p, 0.0, 1.0, above=True)
    _check_float("min_p", params.min_p, 0.0, 1.0)
    _check_float("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_float("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_float(
        "repetition_penalty",
        params.repetition_penalty,
        MIN_REPETITION_PENALTY,
        MAX_REPETITION_PENALTY,
    )
    _check_stops(params, limits)
    _check_bias(params.logit_bias, limits)


def _check_stops(params: SamplingParams, limits: Limits) -> None:
    check_num_entries("stop", params.stop)
    for text in params.stop:
        _check_length("stop", text, 1, MAX_STOP_CHARS)
    check_num_entries("stop_token_ids", params.stop_token_ids)
    check_token_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)


def _check_bias(bias: dict[int, float], limits: Limits) -> None:
    check_num_entries("logit_bias", bias)
    check_token_ids("logit_bias", bias, limits.vocab_size)
    for token_id, value in bias.items():
        _check_float(f"logit_bias[{token_id}]", value, -100.0, 100.0)


def _check_int(field: str, value: int, lowest: int, highest: int | None, of_what: str = "") -> None:
    if value < lowest or (highest is not None and value > highest):
        limit = f"at least {lowest}" if highest is None else f"{lowest} to {highest}{of_what}"
        raise InvalidField(field, f"{value} is out of range; it must be {limit}")


def _check_float(
    field: str, value: float, lowest: float, highest: float, *, above: bool = False
) -> None:
    # Written so that NaN, which fails every comparison, is refused.
    if not (lowest <= value <= highest) or (above and value == lowest):
        start = f"above {lowest:g} and at most" if above else f"{lowest:g} to"
        raise InvalidField(field, f"{value} is out of range; it must be {start} {highest:g}")


def _check_length(field: str, text: str, lowest: int, highest: int) -> None:
    if not lowest <= len(text) <= highest:
        raise InvalidField(field, f"has {len(text)} characters; it must have {lowest} to {highest}")


def _check_printable(field: str, text: str) -> None:
    for place, character in enumerate(text):
        if not character.isprintable():
            problem = f"has {character!r} at place {place}; it must be printable"
            raise InvalidField(field, problem)


def check_token_ids(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Raise `InvalidField` naming `field` unless all are in the vocabulary."""
    if not token_ids:
        return
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidField(
                field, f"token id {token_id} is not in the vocabulary of {vocab_size} tokens"
            )
