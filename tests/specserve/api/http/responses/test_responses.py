"""POST /v1/responses as OpenAI's own client reads it, whole and as a stream of typed events."""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from specserve.types import Abort, GrammarKind, Request, Submit
from tests.specserve.api.http.conftest import opened, send

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OPENING = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
ENDING = [
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def requests_of(rig) -> list[Request]:
    """What the target was asked so far."""
    return [message.request for message in rig.target.received(Submit)]


def prompt_of(rig, request: Request) -> str:
    return rig.tokenizer.decode(request.prompt_token_ids)


def events_in(content: bytes) -> list[dict[str, Any]]:
    """Of a stream, each by its own name, numbered from the first on, and as OpenAI types them."""
    found = []
    for piece in content.decode().strip("\n").split("\n\n"):
        name, data = piece.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENTS.validate_python(found[-1])
    return found


def test_a_text_is_answered(client, rig):
    found = client.responses.create(model="scripted", input="fox")
    assert found.output_text == rig.text
    (item,) = found.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert (found.object, found.status, found.error) == ("response", "completed", None)
    assert found.id.startswith("resp_")
    assert found.completed_at >= found.created_at > 1_600_000_000
    assert found.usage.output_tokens == len(rig.script_ids)
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert found.usage.input_tokens_details.cached_tokens == 1  # as the target has it
    assert prompt_of(rig, requests_of(rig)[0]) == "user: fox\nassistant:"


def test_what_is_shown_is_as_openai_types_it(ask):
    answer = ask("POST", "/v1/responses", {"input": "fox", "max_output_tokens": 3})
    found = Response.model_validate(answer.body)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.output[0].status == "incomplete"
    assert (found.max_output_tokens, found.usage.output_tokens) == (3, 3)
    assert (found.temperature, found.top_p, found.truncation) == (1.0, 1.0, "disabled")
    assert (found.text.format.type, found.tools, found.metadata) == ("text", [], {})


def test_a_conversation_is_written_as_a_chat_is(client, rig):
    client.responses.create(
        model="scripted",
        instructions="be brief",
        input=[
            {"role": "developer", "content": "kindly"},
            {"role": "user", "content": [
                {"type": "input_text", "text": "fox"}, {"type": "input_text", "text": "dog"},
            ]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "jumps", "annotations": []}]},
            {"role": "user", "content": "over"},
        ],
    )  # fmt: skip
    expected = "system: be brief\nsystem: kindly\nuser: fox\ndog\nassistant: jumps\nuser: over\n"
    assert prompt_of(rig, requests_of(rig)[0]) == expected + "assistant:"


def test_an_answer_is_sent_back_as_it_came(client, rig):
    first = client.responses.create(model="scripted", input="fox", store=False)
    turns = [{"role": "user", "content": "fox"}, *first.output, {"role": "user", "content": "on"}]
    client.responses.create(model="scripted", input=turns, store=False)
    expected = f"user: fox\nassistant: {rig.text}\nuser: on\nassistant:"
    assert prompt_of(rig, requests_of(rig)[1]) == expected


def test_fields_reach_the_target(make_rig):
    rig = make_rig()
    with OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        client.responses.create(
            model="scripted",
            input="fox",
            max_output_tokens=7,
            temperature=0.5,
            top_p=0.9,
            text={"format": {"type": "json_schema", "name": "any", "schema": {"type": "object"}}},
            extra_body={"top_k": -1, "seed": 5, "stop": ["never"], "priority": 2, "min_p": 0.1},
        )
    (request,) = requests_of(rig)
    sampling, grammar = request.sampling, request.grammar
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.stop) == (0, 0.1, ("never",))
    assert (request.seed, request.seeded_by_user, request.priority) == (5, True, 2)
    assert (grammar.kind, grammar.text) == (GrammarKind.JSON_SCHEMA, '{"type":"object"}')


def test_what_was_asked_for_is_shown_again(make_rig):
    form = {"type": "json_schema", "name": "any", "schema": {"type": "object"}, "strict": True}
    asked = {
        "instructions": "be brief", "metadata": {"a": "b"}, "temperature": 0, "store": False,
        "text": {"format": form}, "max_output_tokens": 9, "background": False,
    }  # fmt: skip
    body = asked | {"input": "fox", "user": "somebody"}
    found = send(make_rig().url, "POST", "/v1/responses", body).body
    assert {name: found[name] for name in asked} == asked


def test_a_response_is_streamed_in_typed_events(ask, rig):
    answer = ask("POST", "/v1/responses", {"input": "fox", "stream": True})
    events = events_in(answer.body)
    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds == [*OPENING, *["response.output_text.delta"] * len(deltas), *ENDING,
                     "response.completed"]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in deltas) == rig.text
    assert all(event["delta"] for event in deltas)  # a fox takes several tokens
    last = events[-1]["response"]
    assert events[0]["response"]["status"] == "in_progress"
    assert (last["status"], last["output"][0]) == ("completed", events[-2]["item"])
    assert {event["item_id"] for event in deltas} == {last["output"][0]["id"]}
    assert last["output"][0]["content"][0]["text"] == rig.text == events[-4]["text"]
    assert {each["response"]["id"] for each in (events[0], events[1])} == {last["id"]}


def test_a_stream_that_has_no_more_room_is_incomplete(ask):
    answer = ask("POST", "/v1/responses", {"input": "a", "stream": True, "max_output_tokens": 2})
    last = events_in(answer.body)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_answer_of_nothing_is_a_message_all_the_same(client, ask, rig):
    rig.script("")
    found = client.responses.create(model="scripted", input="fox")
    assert (found.output_text, len(found.output), found.status) == ("", 1, "completed")
    events = events_in(ask("POST", "/v1/responses", {"input": "fox", "stream": True}).body)
    assert [event["type"] for event in events] == [*OPENING, *ENDING, "response.completed"]


def test_the_client_puts_a_stream_together(client, rig):
    with client.responses.stream(model="scripted", input="fox") as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text == rig.text


@pytest.mark.parametrize("streams", [False, True])
def test_log_probabilities_come_where_they_are_wanted(ask, rig, streams):
    body = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = ask("POST", "/v1/responses", body | {"stream": streams})
    response = events_in(answer.body)[-1]["response"] if streams else answer.body
    Response.model_validate(response)
    (part,) = response["output"][0]["content"]
    assert len(part["logprobs"]) == len(rig.script_ids)
    assert len(part["logprobs"][0]["top_logprobs"]) == 2
    assert response["top_logprobs"] == 2
    if streams:
        deltas = [each for each in events_in(answer.body) if "delta" in each]
        assert [one for each in deltas for one in each["logprobs"]] == part["logprobs"]


def test_what_speculation_did_is_told(ask, rig):
    rig.target.stats = rig.target.stats.__class__(
        num_prompt_tokens=3, num_drafts=2, num_drafted_tokens=6, num_accepted_per_position=[2, 1]
    )
    told = ask("POST", "/v1/responses", {"input": "fox"}).body["metrics"]["speculative_decoding"]
    assert (told["num_spec_steps"], told["num_accepted_draft_tokens"]) == (2, 3)


@pytest.mark.parametrize("streams", [False, True])
def test_who_leaves_is_aborted_at_once(rig, streams):
    rig.script("the lazy dog " * 200)
    rig.target.round_s = 0.01
    with opened(rig, {"input": "fox", "stream": streams}, "/v1/responses") as connection:
        rig.until(lambda: rig.target.num_live == 1)
        if streams:
            connection.getresponse().read(64)
    rig.until(lambda: rig.service.hub.num_in_flight == 0)
    rig.until(lambda: len(rig.target.received(Abort)) == 1)


def test_a_stream_that_is_cut_ends_with_failed(make_rig):
    rig = make_rig()
    rig.script("the lazy dog " * 200)
    rig.target.round_s = 0.02
    with opened(rig, {"input": "fox", "stream": True}, "/v1/responses") as connection:
        response = connection.getresponse()
        rig.until(lambda: rig.target.num_live == 1)
        rig.lose_target("word")
        events = events_in(response.read())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "killed by SIGKILL" in events[-1]["response"]["error"]["message"]
    kept = send(rig.url, "GET", f"/v1/responses/{events[0]['response']['id']}")
    assert (kept.status, kept.body["status"]) == (200, "failed")


@pytest.mark.parametrize("streams", [False, True])
def test_a_deadline_ends_it_once(ask, rig, streams):
    rig.script("the lazy dog " * 200)
    rig.target.round_s = 0.05
    body = {"input": "fox", "timeout_s": 0.3, "stream": streams}
    answer = ask("POST", "/v1/responses", body)
    if streams:
        *_, last = events_in(answer.body)
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert last["response"]["error"]["type"] == "timeout_error"
        assert last["response"]["output"][0]["status"] == "incomplete"
    else:
        assert (answer.status, answer.body["error"]["type"]) == (408, "timeout_error")


def test_what_is_refused_has_a_status_before_a_stream_begins(client):
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="scripted", input="fox", temperature=-1, stream=True)
    assert caught.value.param == "temperature"
