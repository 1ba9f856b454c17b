"""Log probabilities of completions and of prompts: names of tokens, and places in a text."""

import pytest

from specserve.api.http.completion_logprobs import completion_logprobs
from specserve.types import Logprobs, Submit
from tests.specserve.api.http.conftest import events_of

FOX = "🦊".encode()
BODY = {"max_tokens": 40, "logprobs": 2}


def position(token: bytes, logprob: float, top: dict[bytes, float]) -> Logprobs:
    return Logprobs(
        token_id=1,
        logprob=logprob,
        rank=1,
        top_ids=[2] * len(top),
        top_logprobs=list(top.values()),
        token_bytes=token,
        top_bytes=list(top),
    )


def choices_of(ask, body: dict, *, streams: bool) -> list[dict]:
    """Of an answer, whole or put together from a stream's chunks."""
    answer = ask("POST", "/v1/completions", body | {"stream": streams}).body
    if not streams:
        return answer["choices"]
    found: dict[int, dict] = {}
    for choice in (each for chunk in events_of(answer)[:-1] for each in chunk["choices"]):
        told = choice["logprobs"] or {}
        seen = found.setdefault(choice["index"], {"text": "", "logprobs": {n: [] for n in told}})
        seen["text"] += choice["text"]
        for name, values in told.items():
            seen["logprobs"][name] += values
    return [found[index] for index in sorted(found)]


def test_tokens_within_a_character_keep_their_own_probabilities():
    likelier = {FOX[1:2]: -0.1, b"a": -2.0}
    found = completion_logprobs([position(FOX[:1], -3.0, likelier)], [0])
    assert found["tokens"] == ["bytes:\\xf0"]
    assert found["top_logprobs"] == [{"bytes:\\xf0": -3.0, "bytes:\\x9f": -0.1, "a": -2.0}]


def test_a_prompts_first_token_has_a_name_and_no_probability():
    found = completion_logprobs([position(b"ab", -0.5, {b"x": -1.0})], [0, 3], "the")
    assert found["tokens"] == ["the", "ab"]
    assert found["token_logprobs"] == [None, -0.5]
    assert found["top_logprobs"] == [None, {"ab": -0.5, "x": -1.0}]
    assert found["text_offset"] == [0, 3]


def test_a_token_begins_behind_a_character_that_is_never_finished(ask, rig):
    ids = rig.encode("fox🦊")[:-1] + rig.encode("the")
    rig.script_ids = ids
    body = BODY | {"prompt": ids, "echo": True, "max_tokens": len(ids)}
    (choice,) = ask("POST", "/v1/completions", body).body["choices"]
    half = "fox\N{REPLACEMENT CHARACTER}the"
    assert choice["text"] == half * 2
    told = choice["logprobs"]
    places = [
        place for place, t in zip(told["text_offset"], told["tokens"], strict=True) if t == "the"
    ]
    assert places == [len("fox_"), len("fox_the") + len("fox_")]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("more", [{}, {"echo": True}, {"echo": True, "return_token_ids": True}])
@pytest.mark.parametrize("prompt", ["the 🦊 fox", "<eos>the fox", [5, 0, 9, 300]])
@pytest.mark.parametrize("stop", [[], ["STOP"], ["own f"]])
def test_tokens_are_where_their_text_is(ask, rig, streams, more, prompt, stop):
    rig.target.per_round = 3
    body = BODY | {"prompt": prompt, "n": 2, "stop": stop} | more
    choices = choices_of(ask, body, streams=streams)
    assert len(choices) == 2
    for choice in choices:
        text, told = choice["text"], choice["logprobs"]
        places = dict(zip(told["text_offset"], told["tokens"], strict=True))  # the last at each
        whole = {p: t for p, t in places.items() if not t.startswith("bytes:") and t != "<eos>"}
        assert len(whole) > 3
        for place, token in whole.items():
            assert token.startswith(text[place : place + len(token)])  # a stop cuts the last one
            assert text[place : place + len(token)] in (token, text[place:])
        if "echo" in more and isinstance(prompt, str):
            assert text.startswith(prompt)
            assert told["tokens"][0] == prompt[: len(told["tokens"][0])]


@pytest.mark.parametrize("streams", [False, True])
def test_special_tokens_that_are_shown_take_their_place(ask, rig, streams):
    rig.script_ids = [*rig.encode("fox"), 0, *rig.encode("the")]
    body = BODY | {"prompt": "fox", "ignore_eos": True}
    for skips, text in ((True, "foxthe"), (False, "fox<eos>the")):
        (choice,) = choices_of(ask, body | {"skip_special_tokens": skips}, streams=streams)
        assert choice["text"] == text
        told = choice["logprobs"]
        places = dict(zip(told["tokens"], told["text_offset"], strict=True))
        assert places["the"] == text.index("the")


def test_an_echo_of_what_is_no_token_is_refused(ask):
    for prompt in ([2**70], [[1], [-1]], [400], ""):
        answer = ask("POST", "/v1/completions", BODY | {"prompt": prompt, "echo": True})
        assert (answer.status, answer.body["error"]["param"]) == (400, "prompt")


def test_a_prompts_log_probabilities_are_by_token_id(ask, rig):
    body = {"prompt": ["the fox", "🦊"], "n": 2, "max_tokens": 2, "prompt_logprobs": 2}
    choices = ask("POST", "/v1/completions", body).body["choices"]
    for choice, prompt in zip(choices, ["the fox"] * 2 + ["🦊"] * 2, strict=True):
        first, *others = choice["prompt_logprobs"]
        assert first is None
        ids = rig.encode(prompt)[1:]
        assert [next(iter(each)) for each in others] == [str(token_id) for token_id in ids]
        for token_id, each in zip(ids, others, strict=True):
            own = {"logprob": -0.5, "rank": 1}
            name = each[str(token_id)]["decoded_token"]
            assert each[str(token_id)] == own | {"decoded_token": name}
            assert each[str(token_id + 1)]["rank"] == 2
    within_the_fox = choices[3]["prompt_logprobs"][1][str(rig.encode("🦊")[1])]
    assert within_the_fox["decoded_token"].startswith("bytes:")


@pytest.mark.parametrize(("logprobs", "prompts"), [(0, 2), (3, 1)])
def test_an_echo_takes_nothing_from_a_prompts_log_probabilities(ask, rig, logprobs, prompts):
    """The target is asked for the larger number."""
    body = {"prompt": "the fox", "max_tokens": 2, "echo": True}
    body |= {"logprobs": logprobs, "prompt_logprobs": prompts}
    assert ask("POST", "/v1/completions", body).status == 200
    request = rig.target.received(Submit)[-1].request
    assert request.sampling.prompt_logprobs == max(logprobs, prompts)


def test_a_chats_prompt_is_told_beside_its_choices(ask, rig):
    messages = [{"role": "user", "content": "fox"}]
    body = {"messages": messages, "max_tokens": 2, "prompt_logprobs": 0, "return_token_ids": True}
    answer = ask("POST", "/v1/chat/completions", body).body
    ids = rig.encode("user: fox\nassistant:")
    assert answer["prompt_token_ids"] == ids
    assert len(answer["prompt_logprobs"]) == len(ids)
    assert set(answer["choices"][0]) & {"prompt_token_ids", "prompt_logprobs"} == set()


def test_a_stream_has_no_log_probabilities_of_prompts(ask):
    body = {"prompt": "fox", "prompt_logprobs": 1, "stream": True}
    answer = ask("POST", "/v1/completions", body)
    assert (answer.status, answer.body["error"]["param"]) == (400, "prompt_logprobs")
    assert "leave stream out" in answer.body["error"]["message"]
