"""Cases 16, 17 and 19: many samples, ids that are no tokens, and stops and prompts that are odd."""

import json
import threading

import pytest

from specserve.errors import InvalidField
from tests.cases.apis import GRPC, HTTP, Service, ask, ask_plainly, posted, refusal
from tests.cases.parts import case
from tests.reliability.scale import is_long

PROMPT = "def main():\n    "
SEEDED = {"temperature": 1, "seed": 12, "ignore_eos": True}


# --- case 16 ---------------------------------------------------------------------------------


@pytest.mark.slow
@case(16)
def test_samples_of_one_request_are_those_of_plain_decoding(api: str, service: Service):
    for n in (2, 5, 64):
        fields = {**SEEDED, "n": n, "max_tokens": 16 if n < 64 else 8}
        answer = ask(api, service, PROMPT, **fields)
        assert answer == ask_plainly(service, PROMPT, **fields)
        assert len(answer.samples) == n
        assert len({sample.token_ids for sample in answer.samples}) == n
        one = ask(api, service, PROMPT, **fields | {"n": 1})
        assert answer.num_prompt_tokens == one.num_prompt_tokens
        assert answer.num_generated_tokens == n * fields["max_tokens"]


@pytest.mark.slow
@case(16)
def test_a_sample_that_stops_early_leaves_the_others_alone(api: str, service: Service):
    fields = {**SEEDED, "n": 5, "max_tokens": 24}
    whole = ask_plainly(service, PROMPT, **fields)
    first = whole.samples[2].text
    stop = next(
        text
        for text in (first[4:8], first[6:10], first[8:12])
        if all(text not in other.text for other in whole.samples if other.text != first)
    )
    answer = ask(api, service, PROMPT, **fields, stop=[stop])
    assert answer == ask_plainly(service, PROMPT, **fields, stop=[stop])
    for place, (sample, same) in enumerate(zip(answer.samples, whole.samples, strict=True)):
        assert (sample == same) is (place != 2)
    assert (answer.samples[2].stop, answer.samples[2].finish_reason) == (stop, "stop")


@case(16)
def test_too_many_samples_are_refused_at_once(api: str, service: Service):
    for n in (65, 10**6, 0):
        assert refusal(api, service, PROMPT, n=n) == f"n: {n} is out of range; it must be 1 to 64"


# --- case 17 ---------------------------------------------------------------------------------


@pytest.mark.slow
@case(17)
def test_ids_that_are_no_tokens_are_refused_and_disturb_nobody(api: str, service: Service):
    last = service.client.model_info().vocab_size - 1
    requests = [
        SEEDED | {"max_tokens": 400 if is_long() else 60, "seed": seed} for seed in (1, 2, 3)
    ]
    alone = [ask_plainly(service, PROMPT, **fields) for fields in requests]
    found: dict[int, object] = {}

    def decode(place: int) -> None:
        found[place] = ask(api, service, PROMPT, **requests[place])

    threads = [threading.Thread(target=decode, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    num_refused = 0
    while any(thread.is_alive() for thread in threads) or not num_refused:
        for wrong in (last + 1, 2**31, 2**32 - 1):
            limit = f"token id {wrong} is not in the vocabulary of {last + 1} tokens"
            field = "token_ids" if api == GRPC else "prompt"
            assert refusal(api, service, [5, wrong]) == f"{field}: {limit}"
            given = {"stop_token_ids": [wrong]}
            assert refusal(api, service, PROMPT, **given) == f"stop_token_ids: {limit}"
            assert refusal(api, service, PROMPT, logit_bias={wrong: 5.0}) == f"logit_bias: {limit}"
            num_refused += 3
    for thread in threads:
        thread.join()
    assert [found[place] for place in range(3)] == alone
    assert num_refused > 8


@case(17)
def test_the_last_token_of_the_vocabulary_is_one(api: str, service: Service):
    last = service.client.model_info().vocab_size - 1
    bias = {last: 100.0}
    answer = ask(api, service, [5, last], temperature=0, max_tokens=4, logit_bias=bias)
    assert answer.only.token_ids == (last,) * 4
    stopped = ask(
        api, service, PROMPT, temperature=0, max_tokens=4, logit_bias=bias, stop_token_ids=[last]
    )
    assert (stopped.only.token_ids, stopped.only.stop, stopped.only.text) == ((last,), last, "")


# --- case 19 ---------------------------------------------------------------------------------

STOPS = [
    ([""], "stop: has 0 characters; it must have 1 to 256"),
    (["x" * 257], "stop: has 257 characters; it must have 1 to 256"),
    (["fine", ""], "stop: has 0 characters; it must have 1 to 256"),
    (["x"] * 17, "stop: has 17 entries; the limit is 16"),
]


@case(19)
def test_odd_stops_are_refused_by_name(api: str, service: Service):
    for stop, problem in STOPS:
        assert refusal(api, service, PROMPT, stop=stop) == problem
    longest = {"stop": ["y" * 256] * 16}
    assert ask(api, service, PROMPT, **longest, max_tokens=2).num_generated_tokens == 2


@case(19)
def test_budgets_of_nothing_are_refused_by_name(api: str, service: Service):
    for max_tokens in (0, -1):
        problem = f"max_tokens: {max_tokens} is out of range; it must be at least 1"
        assert refusal(api, service, PROMPT, max_tokens=max_tokens) == problem


@case(19)
def test_empty_prompts_are_refused_and_odd_ones_served(api: str, service: Service):
    for empty in ("", []):
        problem = refusal(api, service, empty)
        assert problem == "prompt: is empty; it must have at least 1 token"
    for odd in ("\0", "<|endoftext|>" * 3, "\ufffd", "\u200b"):
        answer = ask(api, service, odd, temperature=0, max_tokens=3, ignore_eos=True)
        assert answer.num_generated_tokens == 3


@case(19, apis=[GRPC])
def test_what_is_no_text_is_refused_before_it_is_sent(api: str, service: Service):
    for field, call in (
        ("stop", lambda client: client.generate(PROMPT, stop=["\ud800"])),
        ("prompt", lambda client: client.generate("\ud800")),
    ):
        with pytest.raises(InvalidField, match=f"^{field}: "):
            call(service.client)


@case(19, apis=[HTTP])
def test_what_is_no_text_is_refused_over_http(api: str, service: Service):
    for body in ({"prompt": "\ud800"}, {"prompt": PROMPT, "stop": "\ud800"}):
        assert r"\ud800" in json.dumps(body)
        with posted(service, body, "/v1/completions") as response:
            assert response.status == 400


@case(19, apis=[HTTP])
def test_a_conversation_without_messages_is_refused(api: str, service: Service):
    with posted(service, {"messages": []}, "/v1/chat/completions") as response:
        problem = json.loads(response.read())["error"]
    assert (response.status, problem["param"]) == (400, "messages")
