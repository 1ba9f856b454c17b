"""Responses that are kept: asked for again, continued, listed, dropped, and nobody else's."""

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from specserve.types import Submit
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.responses.test_responses import prompt_of, requests_of
from tests.specserve.api.key_rig import ADMIN, ALICE, ALICE_TOO, BOB, keyed, rig_of_all

__all__ = ["keyed", "rig_of_all"]

ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def test_an_answer_is_asked_for_again(client):
    for more in ({}, {"metadata": {"a": "b"}}):
        found = client.responses.create(model="scripted", input="fox", **more)
        assert client.responses.retrieve(found.id) == found
    with client.responses.stream(model="scripted", input="fox") as stream:
        final = stream.get_final_response()
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_what_is_not_to_be_kept_is_not(client):
    found = client.responses.create(model="scripted", input="fox", store=False)
    with pytest.raises(NotFoundError, match="made with store: false"):
        client.responses.retrieve(found.id)


def test_a_conversation_goes_on(client, rig):
    """Of the previous response all but its instructions."""
    rig.script("the lazy dog")
    first = client.responses.create(model="scripted", input="fox", instructions="be brief")
    rig.script("jumps")
    second = client.responses.create(
        model="scripted", input="over", previous_response_id=first.id, instructions="be kind"
    )
    third = client.responses.create(
        model="scripted", input=[{"role": "user", "content": "on"}], previous_response_id=second.id
    )
    assert third.previous_response_id == second.id
    said = "user: fox\nassistant: the lazy dog\nuser: over\n"
    requests = requests_of(rig)
    assert prompt_of(rig, requests[1]) == f"system: be kind\n{said}assistant:"
    assert prompt_of(rig, requests[2]) == f"{said}assistant: jumps\nuser: on\nassistant:"


def test_one_answer_may_be_continued_twice(client, rig):
    first = client.responses.create(model="scripted", input="fox")
    for text in ("dog", "jumps"):
        client.responses.create(model="scripted", input=text, previous_response_id=first.id)
        expected = f"user: fox\nassistant: {rig.text}\nuser: {text}\nassistant:"
        assert prompt_of(rig, requests_of(rig)[-1]) == expected


def test_a_conversation_goes_on_though_what_was_before_is_deleted(client, rig):
    first = client.responses.create(model="scripted", input="fox")
    second = client.responses.create(model="scripted", input="a", previous_response_id=first.id)
    client.responses.delete(first.id)
    client.responses.create(model="scripted", input="b", previous_response_id=second.id)
    assert prompt_of(rig, requests_of(rig)[-1]).startswith("user: fox\nassistant: ")


def test_what_has_no_answer_is_not_continued(ask, client, rig):
    rig.script("the lazy dog " * 200)
    rig.target.round_s = 0.01
    running = client.responses.create(model="scripted", input="fox", background=True)
    body = {"input": "a", "previous_response_id": running.id}
    answer = ask("POST", "/v1/responses", body)
    assert (answer.status, answer.body["error"]["param"]) == (400, "previous_response_id")
    assert "is in_progress; wait for its answer" in answer.body["error"]["message"]
    client.responses.cancel(running.id)
    answer = ask("POST", "/v1/responses", body)
    assert "has no answer, for it is cancelled" in answer.body["error"]["message"]


def test_items_are_listed_with_all_that_came_before(client, ask, rig):
    first = client.responses.create(
        model="scripted",
        input=[{"role": "developer", "content": "kindly"}, {"role": "user", "content": "fox"}],
    )
    second = client.responses.create(
        model="scripted", input="on", previous_response_id=first.id, instructions="be brief"
    )
    listed = ask("GET", f"/v1/responses/{second.id}/input_items?order=asc").body
    for item in listed["data"]:
        ITEMS.validate_python(item)
    texts = [(item["role"], item["content"][0]["text"]) for item in listed["data"]]
    assert texts == [
        ("developer", "kindly"), ("user", "fox"), ("assistant", rig.text), ("user", "on"),
    ]  # fmt: skip
    assert listed["data"][2]["id"] == first.output[0].id
    assert (listed["has_more"], listed["object"]) == (False, "list")
    latest = client.responses.input_items.list(second.id, limit=3)
    assert [item.id for item in latest] == [item["id"] for item in reversed(listed["data"])]
    assert latest.has_more


def test_items_that_are_sent_with_one_id_are_told_apart(client):
    items = [{"role": "user", "content": text, "id": "msg_x"} for text in ("a", "b", "c")]
    found = client.responses.create(model="scripted", input=items)
    listed = list(client.responses.input_items.list(found.id, limit=1, order="asc"))
    assert [item.content[0].text for item in listed] == ["a", "b", "c"]
    assert listed[0].id == "msg_x"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?limit=%C2%B2", "limit"),
        ("?order=up", "order"),
        ("?after=msg_none", "after"),
        ("?befor=1", "befor"),
        ("?include[]=colours", "include"),
    ],
)
def test_a_list_that_cannot_be(ask, client, query, param):
    found = client.responses.create(model="scripted", input="fox")
    answer = ask("GET", f"/v1/responses/{found.id}/input_items{query}")
    assert (answer.status, answer.body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=maybe", "stream"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=true", "stream"),
        ("?include_obfuscation=true", "include_obfuscation"),
        ("?after=x", "after"),
    ],
)
def test_a_question_that_cannot_be(ask, client, query, param):
    found = client.responses.create(model="scripted", input="fox")
    answer = ask("GET", f"/v1/responses/{found.id}{query}")
    assert (answer.status, answer.body["error"]["param"]) == (400, param)
    assert client.responses.retrieve(found.id, include=["message.output_text.logprobs"]) == found


def test_a_method_that_is_none_is_told_those_there_are(ask):
    for method, path, words in (
        ("PUT", "/v1/responses/resp_x", "this path takes GET and DELETE"),
        ("GET", "/v1/responses/resp_x/cancel", "this path takes POST"),
        ("POST", "/v1/responses/resp_x/input_items", "this path takes GET"),
        (
            "GET",
            "/v1/responses",
            'this path takes POST, with a JSON body such as {"input": "Hello"',
        ),
    ):
        answer = ask(method, path)
        assert answer.status == 405
        assert words in answer.body["error"]["message"]


def test_the_oldest_makes_room(make_rig):
    rig = make_rig(door={"max_stored_responses": 2})
    with OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        first, *others = [client.responses.create(model="scripted", input="a") for _ in range(3)]
        assert [client.responses.retrieve(each.id) for each in others] == others
        with pytest.raises(NotFoundError, match="max_stored_responses"):
            client.responses.retrieve(first.id)


def test_what_is_kept_has_its_time(make_rig):
    rig = make_rig(door={"stored_responses_ttl_s": 0.2})
    found = send(rig.url, "POST", "/v1/responses", {"input": "fox"}).body
    path = f"/v1/responses/{found['id']}"
    rig.until(lambda: send(rig.url, "GET", path).status == 404)


def test_a_service_that_keeps_nothing_says_so(make_rig):
    rig = make_rig(door={"max_stored_responses": 0})
    found = send(rig.url, "POST", "/v1/responses", {"input": "fox", "store": True})
    assert (found.status, found.body["store"]) == (200, False)
    assert send(rig.url, "GET", f"/v1/responses/{found.body['id']}").status == 404
    for field, value in (("background", True), ("previous_response_id", found.body["id"])):
        answer = send(rig.url, "POST", "/v1/responses", {"input": "fox", field: value})
        assert (answer.status, answer.body["error"]["param"]) == (400, field)
        assert "server.max_stored_responses is 0" in answer.body["error"]["message"]


def test_an_answer_that_is_too_large_to_keep_is_given_all_the_same(make_rig):
    rig = make_rig(door={"stored_responses_memory": "500B"})
    found = send(rig.url, "POST", "/v1/responses", {"input": "fox"})
    assert found.body["output"][0]["content"][0]["text"] == rig.text
    assert send(rig.url, "GET", f"/v1/responses/{found.body['id']}").status == 404


def test_another_key_finds_nothing(rig_of_all):
    """Neither whether there is such a response, nor a way to end or continue it."""
    rig = rig_of_all

    def ask(key: str, method: str, path: str, body: Any = None) -> Any:
        return send(rig.url, method, path, body, {"Authorization": f"Bearer {key}"})

    rig.script("the lazy dog " * 200)
    rig.target.round_s = 0.01
    body = {"input": "fox", "background": True, "stream": False}
    response_id = ask(ALICE, "POST", "/v1/responses", body).body["id"]
    path = f"/v1/responses/{response_id}"
    for key in (BOB, ADMIN):
        for method, below in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""),
                              ("POST", "/cancel"), ("GET", "/input_items")):  # fmt: skip
            refused = ask(key, method, f"{path}{below}")
            nobodys = ask(key, method, f"/v1/responses/{response_id[::-1]}{below}")
            assert refused.status == nobodys.status == 404
            told = refused.body["error"]["message"].replace(response_id, "ID")
            assert told == nobodys.body["error"]["message"].replace(response_id[::-1], "ID")
        answer = ask(
            key, "POST", "/v1/responses", {"input": "a", "previous_response_id": response_id}
        )
        assert (answer.status, answer.body["error"]["param"]) == (400, "previous_response_id")
    assert len(rig.target.received(Submit)) == 1
    assert ask(ALICE_TOO, "GET", path).body["status"] == "in_progress"
    assert ask(ALICE_TOO, "POST", f"{path}/cancel").body["status"] == "cancelled"


def test_nothing_is_told_without_a_key(rig_of_all):
    for method, path in (("POST", "/v1/responses"), ("GET", "/v1/responses/resp_x"),
                         ("DELETE", "/v1/responses/resp_x"),
                         ("POST", "/v1/responses/resp_x/cancel")):  # fmt: skip
        assert send(rig_of_all.url, method, path, {"input": "a"}).status == 401


def test_continuing_what_is_not_kept_says_why_it_may_be(client):
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="scripted", input="a", previous_response_id="resp_none")
    assert "'resp_none' is not kept here" in caught.value.body["message"]
