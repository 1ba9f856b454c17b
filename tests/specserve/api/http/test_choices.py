"""Choices and chunks as they are on the wire: what is there, what is null, and what is not."""

import json
import time

import pytest

from specserve.types import RequestStats
from tests.specserve.api.http.conftest import events_of

CHAT = [{"role": "user", "content": "fox"}]
BODIES = {
    "/v1/completions": {"prompt": "fox", "max_tokens": 4},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 4},
}
BOTH = pytest.mark.parametrize("path", BODIES)


def chunks_of(ask, path: str, **fields: object) -> list[dict]:
    answer = ask("POST", path, BODIES[path] | {"stream": True} | fields)
    *chunks, done = events_of(answer.body)
    assert done == "[DONE]"
    return chunks


@BOTH
def test_a_streams_tokens_are_those_of_the_whole(ask, rig, path):
    chunks = chunks_of(ask, path, return_token_ids=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [i for each in choices for i in each.get("token_ids", [])] == rig.script_ids[:4]
    whole = ask("POST", path, BODIES[path] | {"return_token_ids": True}).body["choices"][0]
    assert whole["token_ids"] == rig.script_ids[:4]


def test_an_event_is_one_line_whatever_a_client_takes_for_its_end(ask, rig):
    text = "a\u2028b\u2029c\x85d\x0be\n\rf"
    rig.script(text)
    body = BODIES["/v1/completions"] | {"stream": True, "max_tokens": 100}
    lines = [
        line for line in ask("POST", "/v1/completions", body).body.decode().splitlines() if line
    ]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


@BOTH
def test_usage_is_null_until_the_last_chunk_where_it_is_wanted_and_else_not_there(ask, path):
    *others, last = chunks_of(ask, path, stream_options={"include_usage": True})
    assert all("usage" in each and each["usage"] is None for each in others)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)
    assert all("usage" not in each for each in chunks_of(ask, path))


@BOTH
def test_counts_so_far_have_the_prompt_from_the_start(ask, path):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *others, last = chunks_of(ask, path, stream_options=options)
    prompt = len(ask("POST", "/tokenize", _tokenized(path)).body["tokens"])
    for each in others[:-1]:  # the last of them has what the target said at the end
        assert each["usage"]["prompt_tokens"] == prompt
        assert each["usage"]["total_tokens"] == prompt + each["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def _tokenized(path: str) -> dict:
    return {"prompt": "fox"} if path == "/v1/completions" else {"messages": CHAT}


@BOTH
def test_an_answer_is_of_now_and_all_its_chunks_are_of_one(ask, path):
    before_s = int(time.time())
    chunks = chunks_of(ask, path)
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    assert before_s <= chunks[0]["created"] <= time.time()
    endings = [each["choices"][0]["finish_reason"] for each in chunks]
    assert endings == [None] * (len(chunks) - 1) + ["length"]


@BOTH
def test_a_token_that_stopped_it_is_said(ask, rig, path):
    stop = rig.script_ids[2]
    assert stop not in rig.script_ids[:2]
    (choice,) = ask("POST", path, BODIES[path] | {"stop_token_ids": [399, stop]}).body["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    *_, last = chunks_of(ask, path, stop_token_ids=[399, stop])
    assert last["choices"][0]["stop_reason"] == stop


@BOTH
@pytest.mark.parametrize("streams", [False, True])
def test_what_speculation_did_is_told_of_one_sample_alone(ask, rig, path, streams):
    rig.target.stats = RequestStats(
        num_drafts=2, num_drafted_tokens=4, num_accepted_tokens=1, num_accepted_per_position=[1, 0]
    )
    for n, is_told in ((1, True), (2, False)):
        more = {"n": n}
        if streams:
            more |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = ask("POST", path, BODIES[path] | more).body
        last = events_of(answer)[-2] if streams else answer
        assert ("metrics" in last) is is_told
        if is_told:
            assert last["metrics"]["speculative_decoding"]["num_spec_steps"] == 2


@BOTH
@pytest.mark.parametrize("stop", ["STOP", "never comes"])
def test_a_choice_that_has_ended_says_so_while_others_go_on(ask, rig, path, stop):
    """Ended by the API process at a stop string, or by the target."""
    long = rig.encode("the lazy dog " * 20)
    rig.target.script = lambda request, index: long if index else rig.script_ids
    chunks = chunks_of(ask, path, n=2, max_tokens=100, stop=stop)
    choices = [chunk["choices"][0] for chunk in chunks]
    ends = {each["index"]: n for n, each in enumerate(choices) if each["finish_reason"]}
    places = {
        index: [n for n, each in enumerate(choices) if each["index"] == index] for index in ends
    }
    assert {index: found[-1] for index, found in places.items()} == ends  # once, and last
    assert sum(n > ends[0] for n in places[1]) > 10
    assert choices[ends[0]]["stop_reason"] == ("STOP" if stop == "STOP" else None)
