"""Prompts that are scored and not continued, as clients ask that measure models."""

import pytest

from specserve.types import Submit
from tests.specserve.api.http.conftest import events_of

BODY = {"prompt": ["the quick fox", "a dog"], "echo": True, "max_tokens": 0}


@pytest.mark.parametrize("more", [{}, {"stop": "the"}, {"n": 2}, {"return_token_ids": True}])
def test_there_is_the_prompt_and_nothing_behind_it(more, ask, rig):
    body = BODY | more
    answer = ask("POST", "/v1/completions", body).body
    texts = [prompt for prompt in BODY["prompt"] for _ in range(body.get("n", 1))]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert {choice["stop_reason"] for choice in answer["choices"]} == {None}
    usage = answer["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] > 0
    assert "metrics" not in answer
    assert all(choice.get("token_ids", []) == [] for choice in answer["choices"])


def test_its_log_probabilities_are_those_of_the_prompt(ask):
    body = BODY | {"logprobs": 1}
    scored = ask("POST", "/v1/completions", body).body
    longer = ask("POST", "/v1/completions", body | {"max_tokens": 3}).body
    for choice, other in zip(scored["choices"], longer["choices"], strict=True):
        for name, found in choice["logprobs"].items():
            assert found == other["logprobs"][name][:-3]
        assert len(choice["logprobs"]["tokens"]) > 1
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert choice["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("more", [{}, {"logprobs": 1, "n": 2}])
def test_a_stream_says_the_same(more, ask):
    body = BODY | more
    whole = ask("POST", "/v1/completions", body).body
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = events_of(ask("POST", "/v1/completions", body | options).body)
    assert done == "[DONE]"
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[0]["logprobs"] == choice["logprobs"]
        assert [piece["finish_reason"] for piece in pieces] == [None, "length"]


def test_where_nothing_is_repeated_there_is_nothing_to_say(ask):
    for more in ({"echo": False}, {"max_tokens": -1}):
        answer = ask("POST", "/v1/completions", BODY | more)
        assert (answer.status, answer.body["error"]["param"]) == (400, "max_tokens")


def test_some_values_say_that_nothing_is_set(ask, rig):
    """As vLLM's clients send them: no seed, and no further log probabilities."""
    chat = {"messages": [{"role": "user", "content": "fox"}], "max_tokens": 1}
    for more in ({"seed": -1}, {"top_logprobs": 0}, {"top_logprobs": 0, "logprobs": False}):
        answer = ask("POST", "/v1/chat/completions", chat | more)
        assert answer.status == 200
        assert answer.body["choices"][0]["logprobs"] is None
    requests = [message.request for message in rig.target.received(Submit)]
    assert {each.seeded_by_user for each in requests} == {False}
    assert requests[0].seed != requests[1].seed


def test_text_parts_are_lines(ask):
    def tokens(content: object) -> list[int]:
        body = {"messages": [{"role": "user", "content": content}]}
        return ask("POST", "/tokenize", body).body["tokens"]

    parts = [{"type": "text", "text": text} for text in ("the fox", "", "a dog")]
    assert tokens(parts) == tokens("the fox\na dog")
