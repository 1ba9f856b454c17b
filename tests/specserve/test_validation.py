"""Every field has a limit, and the error names both."""

import math
import random
import time

import msgspec
import pytest

from specserve.errors import InvalidField
from specserve.types import Request, SamplingParams
from specserve.validation import Limits, validate_request, validate_sampling

LIMITS = Limits(vocab_size=100, max_model_len=64, max_samples=8, max_logprobs=20)


def request(prompt=(1, 2, 3), **fields):
    own = {name: fields.pop(name) for name in list(fields) if name in Request.__struct_fields__}
    own = {"request_id": "r", "seed": 0} | own
    return Request(prompt_token_ids=list(prompt), sampling=SamplingParams(**fields), **own)


BAD = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 100.5),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("top_k", -1),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("min_p", math.nan),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", -math.inf),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 10.1),
    ("repetition_penalty", math.nan),
    ("stop", ("",)),
    ("stop", ("x" * 257,)),
    ("stop", ("x",) * 17),
    ("stop_token_ids", (100,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", (1,) * 65),
    ("min_tokens", -1),
    ("min_tokens", 257),
    ("max_tokens", 0),
    ("n", 0),
    ("n", 9),
    ("n", 10**6),
    ("logprobs", -1),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 10**9),
    ("logit_bias", {100: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", dict.fromkeys(range(1025), 1.0)),
    ("seed", -1),
    ("seed", 2**64),
    ("priority", 2**31),
    ("priority", -(2**31) - 1),
    ("priority", 10**30),
    ("request_id", ""),
    ("request_id", "x" * 257),
    ("request_id", "mine\nERROR forged"),
    ("cache_salt", "x" * 257),
    ("deadline_s", math.nan),
    ("deadline_s", math.inf),
    ("min_tokens_per_s", 0.0),
    ("min_tokens_per_s", -3.0),
    ("min_tokens_per_s", 1.000001e6),
    ("min_tokens_per_s", math.nan),
    ("min_tokens_per_s", math.inf),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidField) as caught:
        validate_request(request(**{field: value}), LIMITS)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert any(character.isdigit() for character in caught.value.problem) or "finite" in str(
        caught.value
    )


@pytest.mark.parametrize("value", [100.5, -100.5, math.nan])
def test_a_bias_out_of_range_names_its_token(value):
    with pytest.raises(InvalidField) as caught:
        validate_request(request(logit_bias={5: 1.0, 7: value}), LIMITS)
    assert caught.value.field == "logit_bias[7]"


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ((), "prompt: is empty"),
        ((1,) * 64, "prompt: has 64 tokens; the limit is 63"),
        ((1, 100), "token_ids: token id 100"),
        ((1, -1), "token_ids: token id -1"),
    ],
)
def test_an_impossible_prompt_is_refused(prompt, problem):
    with pytest.raises(InvalidField, match=problem):
        validate_request(request(prompt), LIMITS)


def test_a_prompt_too_long_for_a_small_pool_says_what_to_raise():
    small = msgspec.structs.replace(LIMITS, fills_pool=True)
    with pytest.raises(InvalidField) as caught:
        validate_request(request((1,) * 64), small)
    assert str(caught.value) == (
        "prompt: has 64 tokens; the limit is 63, "
        "which leaves 1 of max_model_len 64, all that engine.kv_memory holds"
    )
    with pytest.raises(InvalidField) as caught:
        validate_request(request((1,) * 64), LIMITS)
    assert "kv_memory" not in str(caught.value)


EDGES = [
    {"temperature": 0.0},
    {"temperature": 100.0},
    {"top_p": 1.0},
    {"top_p": 1e-9},
    {"top_k": 10**9},
    {"min_p": 1.0},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 10.0},
    {"stop": ("x" * 256,) * 16},
    {"stop_token_ids": (0, 99) * 32},
    {"min_tokens": 5, "max_tokens": 5},
    {"n": 8, "logprobs": 20, "prompt_logprobs": 0},
    {"logit_bias": {0: -100.0, 99: 100.0}},
    {"seed": 2**64 - 1},
    {"priority": 2**31 - 1},
    {"priority": -(2**31)},
    {"min_tokens_per_s": 1e6},
    {"min_tokens_per_s": 1e-9},
]


@pytest.mark.parametrize("fields", EDGES)
def test_the_limits_themselves_are_accepted(fields):
    validate_request(request(**fields), LIMITS)


def test_max_tokens_is_cut_to_the_room_the_prompt_leaves():
    asked = request((1,) * 60, max_tokens=50)
    served = validate_request(asked, LIMITS)
    assert served.sampling.max_tokens == 4
    assert msgspec.structs.replace(served, sampling=asked.sampling) == asked
    fits = request((1,) * 60, max_tokens=4)
    assert validate_request(fits, LIMITS) is fits


def test_a_minimum_that_the_prompt_leaves_no_room_for_is_refused():
    validate_request(request((1,) * 60, max_tokens=50, min_tokens=4), LIMITS)
    with pytest.raises(InvalidField, match="0 to 4, which the prompt leaves of max_model_len 64"):
        validate_request(request((1,) * 60, max_tokens=50, min_tokens=5), LIMITS)


@pytest.mark.parametrize("min_tokens", [0, 3, 4, 5, 50])
@pytest.mark.parametrize("max_tokens", [3, 4, 5, 50])
def test_what_has_passed_passes_again_unchanged(max_tokens, min_tokens):
    asked = request((1,) * 60, max_tokens=max_tokens, min_tokens=min_tokens)
    try:
        served = validate_request(asked, LIMITS)
    except InvalidField:
        assert min_tokens > min(max_tokens, 4)
    else:
        assert validate_request(served, LIMITS) is served


def test_random_requests_pass_exactly_when_every_field_is_in_range():
    rng = random.Random(0)
    for _ in range(2000):
        fields = {
            "temperature": rng.uniform(-20, 140),
            "top_p": rng.uniform(-0.1, 1.2),
            "top_k": rng.randint(-3, 50),
            "min_p": rng.uniform(-0.1, 1.2),
            "n": rng.randint(-1, 10),
        }
        valid = (
            0 <= fields["temperature"] <= 100
            and 0 < fields["top_p"] <= 1
            and fields["top_k"] >= 0
            and 0 <= fields["min_p"] <= 1
            and 1 <= fields["n"] <= 8
        )
        try:
            validate_sampling(SamplingParams(**fields), LIMITS)
        except InvalidField:
            assert not valid
        else:
            assert valid


def test_an_absurd_request_costs_microseconds():
    absurd = SamplingParams(n=10**6)
    start = time.perf_counter()
    for _ in range(1000):
        with pytest.raises(InvalidField):
            validate_sampling(absurd, LIMITS)
    assert (time.perf_counter() - start) / 1000 < 1e-3  # about 10 us; slack for a busy machine
