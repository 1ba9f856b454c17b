"""HTTP where there is no place, no time, or no reader: refused early, ended, cut off."""

import json
import socket
import time
from contextlib import suppress

import pytest

from specserve.api.http import server
from specserve.types import Abort, Submit
from tests.specserve.api.http.conftest import events_of, opened, send

LONG = {"prompt": "fox", "max_tokens": 400, "stream": True}


@pytest.fixture
def endless(rig):
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    return rig


def test_a_full_service_refuses_before_it_reads_or_encodes_anything(make_rig, monkeypatch):
    rig = make_rig(max_queued_requests=1)
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    with opened(rig, LONG):
        rig.until(lambda: rig.target.num_live == 1)
        monkeypatch.setattr("specserve.api.http.endpoint.read_body", None)  # nobody calls it
        answers = [send(rig.url, "POST", "/v1/completions", b"no JSON") for _ in range(3)]
    assert [answer.status for answer in answers] == [429] * 3
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    assert "the limit" in answers[0].body["error"]["message"]
    counted = 'specserve:request_failure_total{code="RESOURCE_EXHAUSTED",model_name="scripted"} 3.0'
    assert counted in send(rig.url, "GET", "/metrics").body.decode()


def test_a_deadline_has_a_status_before_and_an_event_within_an_answer(endless):
    whole = send(endless.url, "POST", "/v1/completions", LONG | {"stream": False, "timeout_s": 0.2})
    assert (whole.status, whole.body["error"]["type"]) == (408, "timeout_error")
    with opened(endless, LONG | {"timeout_s": 0.3}) as connection:
        response = connection.getresponse()
        assert response.status == 200
        *pieces, last = events_of(response.read())
    assert len(pieces) > 3
    assert last["error"]["code"] == 408
    endless.until(lambda: len(endless.target.received(Abort)) == 2)


def test_a_deadline_travels_to_the_target(endless):
    sent_s = time.monotonic()
    with opened(endless, LONG | {"timeout_s": 7.5}):
        endless.until(lambda: endless.target.received(Submit))
    (submitted,) = endless.target.received(Submit)
    assert abs(submitted.request.deadline_s - sent_s - 7.5) < 0.5


@pytest.mark.parametrize("timeout_s", [0, -1, 1e6])
def test_a_deadline_that_is_none_is_refused_by_name(rig, timeout_s):
    answer = send(rig.url, "POST", "/v1/completions", LONG | {"timeout_s": timeout_s})
    assert (answer.status, answer.body["error"]["param"]) == (400, "timeout_s")
    assert "86400" in answer.body["error"]["message"]


# --- readers ------------------------------------------------------------------------------------

# Some 15 MB of events: a kernel keeps up to 4 MB of them (and more where it was told so) for a
# client that reads nothing, and an answer that fits in there lags behind nobody.
LONG_TEXT = "the lazy dog " * 80_000
MAX_TOKENS, MAX_MODEL_LEN = 300_000, 400_000


def stalled(rig) -> socket.socket:
    """A client that has asked and reads nothing, with little room for what it does not read."""
    place = rig.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((place[0], int(place[1])))
    body = json.dumps(LONG | {"max_tokens": MAX_TOKENS, "logprobs": 5}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    return client


@pytest.mark.slow
def test_who_lags_too_far_is_cut_off(make_rig):
    rig = make_rig(buffer_rounds=50, max_model_len=MAX_MODEL_LEN)
    rig.script(LONG_TEXT)
    rig.target.per_round = 100
    with stalled(rig) as client:
        rig.until(lambda: rig.target.received(Abort), 20)
        assert rig.service.hub.num_in_flight == 0
        client.settimeout(20)
        received = b""
        while part := client.recv(2**20):
            received += part
            if b"stream_buffer_rounds" in received[-2000:]:
                break
    assert b'"code":429' in received[-2000:]


@pytest.mark.slow
def test_who_does_not_read_at_all_loses_the_connection(make_rig, monkeypatch):
    monkeypatch.setattr(server, "_UNREAD_MS", 1000)
    rig = make_rig(max_model_len=MAX_MODEL_LEN)
    rig.script(LONG_TEXT)
    rig.target.per_round = 100
    with stalled(rig) as client:
        rig.until(lambda: rig.target.received(Abort), 20)
        rig.until(lambda: rig.service.hub.num_in_flight == 0)
        client.settimeout(20)
        received = b""
        with suppress(ConnectionError):
            while part := client.recv(2**20):
                received += part
    assert b"[DONE]" not in received
