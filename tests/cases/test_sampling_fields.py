"""Cases 12 and 14: log probabilities of accepted tokens, and temperatures next to nothing."""

import math

import pytest
import torch

from specserve.drafters.ngram import NgramDrafter
from specserve.types import RoundEvents
from tests.cases.apis import APIS, GRPC, Service, ask, ask_plainly, refusal
from tests.cases.parts import case
from tests.cases.serving import PAIR, serving
from tests.reliability.scale import is_long
from tests.target_node.in_process import InProcessTarget, fixture_model, request

PROMPT = "def main():\n    "
LENGTH = {"ignore_eos": True, "max_tokens": 32}


@pytest.mark.slow
@case(12)
def test_log_probabilities_are_those_of_plain_decoding(api: str, service: Service):
    num_accepted = 0
    for temperature in (0, 1):
        for count in (0, 1, 20):
            fields = {**LENGTH, "temperature": temperature, "seed": 8, "logprobs": count}
            answer, plain = (
                ask(api, service, PROMPT, **fields),
                ask_plainly(service, PROMPT, **fields),
            )
            assert answer == plain
            assert len(plain.only.logprobs) == len(plain.only.token_ids) == 32
            assert any(value < -0.01 for value in answer.only.logprobs)
            num_accepted += answer.num_accepted
            if api == GRPC:
                assert answer.only.entries == plain.only.entries
    assert num_accepted > 20


@pytest.mark.slow
@case(12, apis=[GRPC])
def test_log_probabilities_agree_with_each_other(api: str, service: Service):
    for temperature in (0, 1):
        fields = {**LENGTH, "temperature": temperature, "seed": 8, "logprobs": 20}
        answer = ask(api, service, PROMPT, **fields).only
        for token_id, entry in zip(answer.token_ids, answer.entries, strict=True):
            assert (entry.token_id, len(entry.top_ids)) == (token_id, 20)
            assert entry.rank >= 1
            assert entry.top_logprobs == sorted(entry.top_logprobs, reverse=True)
            assert (entry.rank == 1) or temperature == 1
            if entry.rank <= 20:
                place = entry.top_ids.index(token_id)
                assert entry.top_logprobs[place] == entry.logprob
                assert entry.top_logprobs.index(entry.logprob) == entry.rank - 1
            else:
                assert entry.logprob <= entry.top_logprobs[-1]


# --- temperatures ----------------------------------------------------------------------------

SMALL = [1e-2, 1e-5, 1e-12, 5e-324]


def assert_small_temperatures_are_greedy(api: str, service: Service) -> None:
    """Without bias, and with one that bans what would come first."""
    fields = {**LENGTH, "logprobs": 2, "seed": 3}
    first = ask_plainly(service, PROMPT, **fields, temperature=0).only.token_ids[0]
    for bias in ({}, {first: -100.0}):
        fields["logit_bias"] = bias
        greedy = ask_plainly(service, PROMPT, **fields, temperature=0)
        for temperature in SMALL[1:]:
            assert ask(api, service, PROMPT, **fields, temperature=temperature) == greedy
        cool = ask(api, service, PROMPT, **fields, temperature=SMALL[0])
        assert all(map(math.isfinite, cool.only.logprobs))


@pytest.mark.slow
@case(14)
def test_a_temperature_next_to_nothing_is_greedy(api: str, service: Service):
    assert_small_temperatures_are_greedy(api, service)


@case(14)
def test_temperatures_out_of_range_are_refused_by_name(api: str, service: Service):
    wrong = [-0.1, 101.0, *([float("nan"), float("inf")] if api == GRPC else [])]
    for value in wrong:
        assert refusal(api, service, PROMPT, temperature=value).startswith("temperature: ")
    if api != GRPC:  # JSON has no such numbers, and a body with them is none
        problem = refusal(api, service, PROMPT, temperature=float("nan"))
        assert problem.startswith("body: is no JSON")


def assert_small_temperatures_are_greedy_here() -> None:
    """In this process, for a service takes more time to start than is left in a plain run."""
    model = fixture_model(dtype=torch.bfloat16)
    target = InProcessTarget(model, draft=NgramDrafter(gamma=4, shortest=1))
    fields = {"max_tokens": 40, "logprobs": 2, "ignore_eos": True}
    bias: dict[int, float] = {}
    for name in ("plain", "banned"):
        for temperature in (0.0, *SMALL):
            cool = {**fields, "temperature": temperature, "logit_bias": bias}
            target.submit(request(f"{name} {temperature}", [3, 9, 4, 3, 9, 4, 3], **cool))
        target.run_until_idle()
        greedy = target.tokens[f"{name} 0.0", 0]
        assert [target.tokens[f"{name} {each}", 0] for each in SMALL[1:]] == [greedy] * 3
        bias = {greedy[0]: -100.0}
    deltas = [d for m in target.control.sent if isinstance(m, RoundEvents) for d in m.deltas]
    logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs or ()]
    assert len(logprobs) == 400
    assert all(map(math.isfinite, logprobs))


def assert_small_temperatures_are_greedy_there() -> None:
    with serving("--dtype", "bfloat16", *PAIR) as own:
        for api in APIS:
            assert_small_temperatures_are_greedy(api, own)


IN_BFLOAT16 = {"here": assert_small_temperatures_are_greedy_here}
if is_long():
    IN_BFLOAT16["in a service"] = assert_small_temperatures_are_greedy_there


@pytest.mark.slow
@pytest.mark.parametrize("place", IN_BFLOAT16)
def test_a_temperature_next_to_nothing_is_greedy_in_bfloat16(place: str):
    IN_BFLOAT16[place]()
