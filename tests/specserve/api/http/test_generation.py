"""Completions and chats as OpenAI's own client reads them, whole and as streams."""

import asyncio
import socket
import time

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError

from specserve.types import Abort, Request, Submit
from tests.specserve.api.http.conftest import events_of, opened, send

CHAT = [{"role": "user", "content": "fox"}]


def requests_of(rig) -> list[Request]:
    """What the target was asked so far."""
    return [message.request for message in rig.target.received(Submit)]


def test_a_chat_is_answered(client, rig):
    answer = client.chat.completions.create(model="scripted", messages=CHAT)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", rig.text)
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    usage = answer.usage
    assert usage.completion_tokens == len(rig.script_ids)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 1  # as the target has it


def test_a_chat_is_streamed(client, rig):
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="scripted", messages=CHAT, stream=True, stream_options=options
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == rig.text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    assert last.choices == []
    assert last.usage.completion_tokens == len(rig.script_ids)
    assert all(chunk.usage is None for chunk in chunks)


def test_counts_so_far_come_with_every_chunk_where_they_are_wanted(client, rig):
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(
        model="scripted", prompt="fox", max_tokens=400, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == len(rig.script_ids)


@pytest.mark.parametrize("streams", [False, True])
def test_special_tokens_are_in_the_text_where_that_is_wanted(ask, rig, streams):
    rig.script_ids = [*rig.encode("fox"), 0, *rig.encode(" STOP")]
    for wish, text in ({}, "fox STOP"), ({"skip_special_tokens": False}, "fox<eos> STOP"):
        body = {"prompt": "fox", "stream": streams, "ignore_eos": True, **wish}
        answer = ask("POST", "/v1/completions", body)
        chunks = events_of(answer.body)[:-1] if streams else [answer.body]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    answer = ask("POST", "/v1/completions", {**body, "stream": False, "stop": ["eos> S"]})
    assert answer.body["choices"][0]["text"] == "fox<"


def test_a_stream_without_wishes_has_no_usage_and_ends_with_done(ask):
    body = {"prompt": "fox", "max_tokens": 4, "stream": True}
    answer = ask("POST", "/v1/completions", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(answer.body)
    assert done == "[DONE]"
    assert all("usage" not in chunk and chunk["object"] == "text_completion" for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_completion_has_sixteen_tokens_and_a_chat_goes_on(client, rig):
    rig.script("the lazy dog " * 40)
    assert client.completions.create(model="scripted", prompt="fox").usage.completion_tokens == 16
    chat = client.chat.completions.create(model="scripted", messages=CHAT)
    assert chat.usage.completion_tokens > 100


@pytest.mark.parametrize("streams", [False, True])
def test_several_prompts_and_samples_are_numbered_through(client, rig, streams):
    answer = client.completions.create(
        model="scripted", prompt=["fox", "dog", "jumps"], n=2, max_tokens=5, stream=streams
    )
    texts = dict.fromkeys(range(6), "")
    for choices in (chunk.choices for chunk in answer) if streams else [answer.choices]:
        for choice in choices:
            texts[choice.index] += choice.text
    expected = rig.tokenizer.decode(rig.script_ids[:5])
    assert texts == dict.fromkeys(range(6), expected)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_prompts_may_be_token_ids(client, prompt):
    answer = client.completions.create(model="scripted", prompt=prompt, max_tokens=2)
    assert answer.usage.prompt_tokens == 3


def test_fields_reach_the_target(client, rig):
    client.chat.completions.create(
        model="scripted",
        messages=CHAT,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        logit_bias={"5": -1.5},
        stop=["never comes"],
        seed=-2,
        extra_body={
            "top_k": -1,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "stop_token_ids": [9],
            "min_tokens": 2,
            "ignore_eos": True,
            "priority": 3,
            "cache_salt": "mine",
            "min_tokens_per_s": 12.5,
        },
    )
    request = requests_of(rig)[-1]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.2)
    assert sampling.logit_bias == {5: -1.5}
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (0, 0.05, 1.1)
    assert (sampling.stop_token_ids, sampling.min_tokens, sampling.ignore_eos) == ((9,), 2, True)
    assert (request.priority, request.cache_salt, request.min_tokens_per_s) == (3, "mine", 12.5)
    assert request.seed == 2**64 - 2
    assert request.seeded_by_user


def test_what_stopped_it_is_said(ask):
    body = {"prompt": "fox", "stop": "STOP", "max_tokens": 100}
    (choice,) = ask("POST", "/v1/completions", body).body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")
    assert "STOP" not in choice["text"]


def test_a_model_that_ends_its_answer_was_stopped_by_nobody(ask):
    (choice,) = ask("POST", "/v1/completions", {"prompt": "fox", "max_tokens": 100}).body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def test_messages_may_come_in_parts_and_by_new_names(client, rig):
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "fox"}]
    messages = [{"role": "developer", "content": "hi"}, {"role": "user", "content": parts}]
    client.chat.completions.create(model="scripted", messages=messages)
    prompt = rig.tokenizer.decode(requests_of(rig)[-1].prompt_token_ids)
    assert prompt == "system: hi\nuser: the\nfox\nassistant:"


def test_a_message_is_continued_where_it_ends(ask, rig):
    messages = [*CHAT, {"role": "assistant", "content": "the quick "}]
    body = {"messages": messages, "continue_final_message": True}
    assert ask("POST", "/v1/chat/completions", body).status == 200
    prompt = rig.tokenizer.decode(requests_of(rig)[-1].prompt_token_ids)
    assert prompt == "user: fox\nassistant: the quick"


def test_token_ids_come_back_where_they_are_wanted(ask, rig):
    body = {"prompt": "fox", "max_tokens": 4, "return_token_ids": True}
    (choice,) = ask("POST", "/v1/completions", body).body["choices"]
    assert choice["token_ids"] == rig.script_ids[:4]
    assert choice["prompt_token_ids"] == rig.encode("fox")
    answer = ask("POST", "/v1/completions", body | {"stream": True})
    *chunks, _ = events_of(answer.body)
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == rig.script_ids[:4]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == rig.encode("fox")


@pytest.mark.parametrize("streams", [False, True])
def test_an_echo_begins_with_the_prompt(ask, rig, streams):
    body = {"prompt": ["the fox", "a dog"], "echo": True, "max_tokens": 3, "stream": streams}
    answer = ask("POST", "/v1/completions", body).body
    chunks = events_of(answer)[:-1] if streams else [answer]
    texts = {0: "", 1: ""}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
    rest = rig.tokenizer.decode(rig.script_ids[:3])
    assert texts == {0: f"the fox{rest}", 1: f"a dog{rest}"}


def test_every_request_has_a_draw_of_its_own_prompt_by_prompt(ask, rig):
    ask("POST", "/v1/completions", {"prompt": ["a", "b"], "seed": 5, "request_id": "me"})
    assert {request.seed for request in requests_of(rig)[-2:]} == {5, 6}


def test_where_one_prompt_is_refused_the_others_are_ended(ask, rig):
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    body = {"prompt": ["fox", "fox " * 600], "max_tokens": 400}
    began_s = time.monotonic()
    answer = ask("POST", "/v1/completions", body)
    assert (answer.status, answer.body["error"]["param"]) == (400, "prompt")
    assert time.monotonic() - began_s < 2
    rig.until(lambda: rig.target.num_live == 0, timeout_s=1)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"prompt": "fox", "temprature": 1}, "temprature", "did you mean temperature? (la"),
        ({"prompt": "fox", "tools": [{}]}, "tools", "/v1/chat/completions has tools"),
        ({"prompt": "fox", "max_tokens": "many"}, "max_tokens", "a whole number of at least"),
        ({"prompt": "fox", "temperature": 1e9}, "temperature", "out of range"),
        ({"prompt": "fox", "n": 65}, "n", "1 to 64"),
        ({"prompt": "fox", "priority": 2**70}, "priority", "out of range"),
        ({"prompt": "fox", "logit_bias": {"x": 1}}, "logit_bias", "no token id"),
        ({"prompt": "fox", "logit_bias": {"1_0": 1}}, "logit_bias", "'1_0', which is no token id"),
        ({"prompt": "fox", "logit_bias": {"9" * 5000: 1}}, "logit_bias", "no token id"),
        ({"prompt": "fox", "stream_options": {"a": 1}}, "stream_options.a", "is no field of"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": ["fox"] * 257}, "prompt", "the limit is 256"),
        ({"prompt": ["fox", 1]}, "prompt", "of one kind"),
        ({"prompt": [1.5]}, "prompt[0]", "not the number 1.5"),
        ({}, "prompt", "is missing; it must be text"),
        ({"prompt": "fox", "n": 2**62}, "n", "it must be 1 to 64"),
        ({"prompt": "fox", "priority": 2**64}, "priority", "it must be -2147483648 to"),
        ({"prompt": [1, 2**40], "echo": True}, "prompt", "is not in the vocabulary"),
        ({"prompt": [-1], "echo": True}, "prompt", "is not in the vocabulary"),
        ({"prompt": "fox", "stream_options": {"include_usage": True}}, "stream_options", "true"),
        (b"", "body", "is empty"),
        (b"{", "body", "is no JSON"),
        (b"[1]", "body", "has to be a JSON object"),
        (b"\xff", "body", "is no JSON"),
    ],
)
def test_what_cannot_be_is_refused_by_name(ask, body, param, says):
    answer = ask("POST", "/v1/completions", body)
    error = answer.body["error"]
    assert (answer.status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
        ({"messages": CHAT, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": CHAT, "top_logprobs": -1, "logprobs": False}, "top_logprobs"),
        ({"messages": CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": CHAT, "tools": [{}]}, "tools[0].function"),
        ({"messages": CHAT, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(ask, more, param):
    answer = ask("POST", "/v1/chat/completions", more)
    assert (answer.status, answer.body["error"]["param"]) == (400, param)
    assert answer.body["error"]["message"].startswith(f"{param}: ")


def test_another_model_is_a_wrong_field(ask):
    answer = ask("POST", "/v1/completions", {"prompt": "fox", "model": "gpt-4"})
    assert (answer.status, answer.body["error"]["param"]) == (404, "model")


def test_clients_know_our_refusals_as_their_own(client):
    with pytest.raises(BadRequestError, match="temperature"):
        client.chat.completions.create(model="scripted", messages=CHAT, temperature=1000)
    with pytest.raises(NotFoundError, match="is not served here"):
        client.chat.completions.create(model="gpt-4", messages=CHAT)


def test_null_is_as_good_as_nothing(ask):
    body = {"prompt": "fox", "max_tokens": None, "stop": None, "user": "me", "logit_bias": None}
    assert ask("POST", "/v1/completions", body).status == 200


def test_a_lenient_service_leaves_out_what_it_does_not_know(make_rig):
    rig = make_rig(lenient=True)
    body = {"prompt": "fox", "max_tokens": 2, "temprature": 1, "best_of": 3}
    answer = send(rig.url, "POST", "/v1/completions", body)
    assert answer.status == 200
    assert answer.headers["x-specserve-warning"] == "ignored: best_of, temprature"
    for path, body in (("/tokenize", {"prompt": "fox"}), ("/detokenize", {"tokens": [5]})):
        assert "x-specserve-warning" not in send(rig.url, "POST", path, body).headers
        answer = send(rig.url, "POST", path, body | {"extra": 1})
        assert (answer.status, answer.headers["x-specserve-warning"]) == (200, "ignored: extra")
    body = {"prompt": "fox", "max_tokens": 2, "日": 1, "a\r\nx-other: b": 1}
    for more in ({}, {"stream": True}):
        answer = send(rig.url, "POST", "/v1/completions", body | more)
        assert answer.status == 200
        assert answer.headers["x-specserve-warning"] == r"ignored: a\r\nx-other: b, \u65e5"
        assert "x-other" not in answer.headers


def test_a_full_service_says_when_to_come_back(make_rig):
    rig = make_rig(max_queued_requests=1)
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    body = {"prompt": "fox", "max_tokens": 300, "stream": True}
    with opened(rig, body):
        rig.until(lambda: rig.target.num_live == 1)
        answer = send(rig.url, "POST", "/v1/completions", body)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.body["error"]["type"] == "rate_limit_error"


def test_a_body_beyond_the_limit_is_not_read(make_rig):
    rig = make_rig(max_message_bytes=1000)
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "x" * 2000})
    assert (answer.status, answer.body["error"]["code"]) == (413, 413)
    assert "1000 bytes" in answer.body["error"]["message"]
    place = rig.url.removeprefix("http://").split(":")
    with socket.create_connection((place[0], int(place[1])), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n"
        )
        assert b"413" in raw.recv(100)  # before any of it was sent
    with socket.create_connection((place[0], int(place[1])), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        raw.sendall(b"7d0\r\n" + b"x" * 2000 + b"\r\n")
        assert b"413" in raw.recv(100)


# --- leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_is_aborted_at_once(rig, streams):
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    with opened(rig, {"prompt": "fox", "max_tokens": 400, "stream": streams}):
        rig.until(lambda: rig.target.num_live == 1)
    assert rig.until(lambda: rig.target.received(Abort)) < 1.0


def test_a_lost_target_ends_streams_with_an_error(make_rig):
    rig = make_rig()
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    with opened(rig, {"prompt": "fox", "max_tokens": 400, "stream": True}) as connection:
        response = connection.getresponse()
        assert response.status == 200
        rig.lose_target("said so")
        *_, last = events_of(response.read())
    assert last["error"]["code"] == 503
    assert "target lost" in last["error"]["message"]
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox"})
    assert answer.status == 503


def test_many_streams_at_once_have_their_own_texts(rig):
    async def all_of_them():
        client = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)
        async with client:
            return await asyncio.gather(*(one(client, number) for number in range(16)))

    async def one(client: AsyncOpenAI, number: int) -> str:
        text = ""
        stream = await client.completions.create(
            model="scripted", prompt="fox", max_tokens=3 + number, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].text
        return text

    found = asyncio.run(all_of_them())
    assert found == [rig.tokenizer.decode(rig.script_ids[: 3 + n]) for n in range(16)]


def test_too_much_at_once_is_an_error_that_clients_know(make_rig):
    rig = make_rig(max_queued_requests=2)
    client_of = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)

    async def ask_for_three():
        async with client_of as client:
            await client.completions.create(model="scripted", prompt=["a", "b", "c"])

    with pytest.raises(RateLimitError):
        asyncio.run(ask_for_three())
    rig.until(lambda: rig.service.hub.num_in_flight == 0)
