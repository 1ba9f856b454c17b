"""Responses in the background: asked for, followed from any event on, cancelled, ended once."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import BadRequestError, NotFoundError

from specserve.types import Abort
from tests.specserve.api.http.conftest import opened, send
from tests.specserve.api.http.responses.test_responses import events_in

LONG = "the lazy dog " * 60


def until_ended(client, response_id: str):
    """The response once nothing makes it any more."""
    deadline_s = time.monotonic() + 20
    while (found := client.responses.retrieve(response_id)).status == "in_progress":
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return found


@pytest.fixture
def slow(rig):
    """A target that writes for seconds."""
    rig.script(LONG)
    rig.target.round_s = 0.01
    return rig


def test_it_goes_on_whoever_waits(client, slow):
    found = client.responses.create(model="scripted", input="fox", background=True)
    assert (found.status, found.background, found.output) == ("in_progress", True, [])
    slow.until(lambda: client.responses.retrieve(found.id).output_text)
    assert client.responses.retrieve(found.id).output[0].status == "in_progress"
    slow.target.round_s = 0.0001
    ended = until_ended(client, found.id)
    assert (ended.status, ended.output_text) == ("completed", LONG)
    assert ended.usage.output_tokens == len(slow.script_ids)


def test_what_is_refused_is_refused_at_once(client):
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="scripted", input="fox", background=True, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(BadRequestError, match="needs store: true"):
        client.responses.create(model="scripted", input="fox", background=True, store=False)


def test_it_is_cancelled_once(client, slow):
    found = client.responses.create(model="scripted", input="fox", background=True)
    slow.until(lambda: client.responses.retrieve(found.id).output_text)
    ended = client.responses.cancel(found.id)
    assert (ended.status, ended.error, ended.output[0].status) == ("cancelled", None, "incomplete")
    assert LONG.startswith(ended.output_text)
    slow.until(lambda: len(slow.target.received(Abort)) == 1)
    assert slow.service.hub.num_in_flight == 0
    assert client.responses.cancel(found.id) == client.responses.retrieve(found.id) == ended


def test_what_has_ended_stays_as_it_is_when_it_is_cancelled(client, rig):
    found = client.responses.create(model="scripted", input="fox", background=True)
    ended = until_ended(client, found.id)
    assert client.responses.cancel(found.id) == ended
    assert ended.status == "completed"


def test_what_its_client_waits_for_is_not_cancelled(client):
    found = client.responses.create(model="scripted", input="fox")
    with pytest.raises(BadRequestError, match="was not made with background: true"):
        client.responses.cancel(found.id)


@pytest.mark.parametrize("streams", [False, True])
def test_a_deleted_one_is_ended_and_gone(client, slow, streams):
    if streams:
        body = {"input": "fox", "background": True, "stream": True}
        with opened(slow, body, "/v1/responses") as connection:
            stream = connection.getresponse()
            (first,) = events_in(stream.readline() + stream.readline())
            client.responses.delete(first["response"]["id"])
            assert events_in(stream.read().lstrip())[-1]["response"]["status"] == "cancelled"
        response_id = first["response"]["id"]
    else:
        response_id = client.responses.create(model="scripted", input="a", background=True).id
        client.responses.delete(response_id)
    slow.until(lambda: slow.service.hub.num_in_flight == 0)
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(NotFoundError, match="is not kept here"):
            ask(response_id)


def test_many_may_end_it_at_once(client, slow):
    """Those that cancel it get what it was by then, those that delete it find it or do not."""
    found = client.responses.create(model="scripted", input="fox", background=True, stream=True)
    response_id = next(found).response.id
    path = f"/v1/responses/{response_id}"
    ways = [("POST", f"{path}/cancel"), ("DELETE", path)] * 4
    with ThreadPoolExecutor(len(ways)) as pool:
        answers = list(pool.map(lambda way: send(slow.url, *way), ways))
    assert {answer.status for answer in answers} <= {200, 404}
    cancelled = [each.body for each in answers if each.body.get("status")]
    assert all(each == cancelled[0] and each["status"] == "cancelled" for each in cancelled)
    assert [event.type for event in found][-1] == "response.incomplete"
    assert send(slow.url, "GET", path).status == 404
    assert slow.service.hub.num_in_flight == 0
    assert len(slow.target.received(Abort)) == 1


def test_its_events_are_read_again_from_any_of_them_on(ask, client, slow):
    """The one who began to read them leaves, which ends nothing."""
    body = {"input": "fox", "background": True, "stream": True}
    with opened(slow, body, "/v1/responses") as connection:
        stream = connection.getresponse()
        (first,) = events_in(stream.readline() + stream.readline())
    path = f"/v1/responses/{first['response']['id']}"
    assert send(slow.url, "GET", path).body["status"] == "in_progress"
    slow.target.round_s = 0.0005
    events = events_in(ask("GET", f"{path}?stream=true").body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0] == first
    assert events[-1]["type"] == "response.completed"
    assert "".join(event.get("delta", "") for event in events) == LONG
    for after in (0, 5, len(events) - 2):
        again = events_in(ask("GET", f"{path}?stream=true&starting_after={after}").body)
        assert again == events[after + 1 :]
    assert ask("GET", f"{path}?stream=true&starting_after={len(events) - 1}").body == b""
    client_events = client.responses.retrieve(first["response"]["id"], stream=True)
    assert [event.type for event in client_events] == [event["type"] for event in events]


def test_a_follower_hears_of_its_cancellation(client, slow):
    stream = client.responses.create(model="scripted", input="fox", background=True, stream=True)
    created = next(stream)
    for event in stream:
        if event.type == "response.output_text.delta":
            client.responses.cancel(created.response.id)
            break
    *_, last = list(stream)
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert last.response.incomplete_details is None


def test_events_are_kept_of_streams_alone(ask, client):
    whole = client.responses.create(model="scripted", input="fox", background=True)
    waited = client.responses.create(model="scripted", input="fox")
    for found in (whole, waited):
        answer = ask("GET", f"/v1/responses/{found.id}?stream=true")
        assert (answer.status, answer.body["error"]["param"]) == (400, "stream")
        assert "background: true and stream: true" in answer.body["error"]["message"]
    until_ended(client, whole.id)


def test_a_lost_target_ends_it_as_failed(make_rig):
    rig = make_rig()
    rig.script(LONG)
    rig.target.round_s = 0.02
    found = send(rig.url, "POST", "/v1/responses", {"input": "fox", "background": True}).body
    rig.until(lambda: rig.target.num_live == 1)
    rig.lose_target("word")
    path = f"/v1/responses/{found['id']}"
    rig.until(lambda: send(rig.url, "GET", path).body["status"] == "failed")
    error = send(rig.url, "GET", path).body["error"]
    assert (error["code"], error["type"]) == ("server_error", "service_unavailable_error")


def test_a_full_service_refuses_it_with_a_time(make_rig):
    rig = make_rig(max_queued_requests=1)
    rig.script(LONG)
    rig.target.round_s = 0.05
    body = {"input": "fox", "background": True}
    first = send(rig.url, "POST", "/v1/responses", body)
    second = send(rig.url, "POST", "/v1/responses", body)
    assert (first.status, second.status) == (200, 429)
    assert int(second.headers["retry-after"]) >= 1
    assert send(rig.url, "POST", f"/v1/responses/{first.body['id']}/cancel").status == 200
    rig.until(lambda: send(rig.url, "POST", "/v1/responses", body).status == 200)


def test_events_that_have_no_room_end_it_as_failed(make_rig):
    rig = make_rig(door={"stored_responses_memory": "16KiB"})
    rig.script(LONG)
    body = {"input": "fox", "background": True, "stream": True}
    *_, last = events_in(send(rig.url, "POST", "/v1/responses", body).body)
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "rate_limit_exceeded"
    assert "server.stored_responses_memory" in last["response"]["error"]["message"]
    rig.until(lambda: rig.service.hub.num_in_flight == 0)


def test_more_that_run_than_are_kept_are_refused(make_rig):
    rig = make_rig(door={"max_stored_responses": 1})
    rig.script(LONG)
    rig.target.round_s = 0.05
    body = {"input": "fox", "background": True}
    assert send(rig.url, "POST", "/v1/responses", body).status == 200
    answer = send(rig.url, "POST", "/v1/responses", body)
    assert answer.status == 429
    assert "server.max_stored_responses" in answer.body["error"]["message"]
    rig.until(lambda: rig.service.hub.num_in_flight == 1)
