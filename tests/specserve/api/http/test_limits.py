"""What is too large, too slow or too deep: refused in so many words, and others go on meanwhile."""

import json
import time

import pytest

from specserve.api.call import MAX_MESSAGE_BYTES
from specserve.api.http import connection, limited_protocol
from specserve.api.http.limited_protocol import MAX_HEAD_BYTES, MAX_HEADERS
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.wire import (
    answer_on,
    asked,
    connected,
    head,
    received,
    seconds_to_end,
    sent_until_refused,
    status,
)

CHUNKED = ["Host: localhost", "Transfer-Encoding: chunked"]
PATHS = ("/v1/completions", "/tokenize")


def told(answer: bytes) -> dict:
    """The error that an answer has."""
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "huge",
    [
        head("/livez", headers=["Host: localhost", "X: " + "x" * 10_000_000]),
        head("/livez", headers=["Host: localhost", "x" * 10_000_000 + ": x"]),
        head("/livez?" + "x" * 10_000_000),
        head("/livez", headers=[f"X-{index}: {'x' * 100}" for index in range(100_000)]),
        head("/livez", headers=[f"X-{index}:" for index in range(MAX_HEADERS + 1)]),
    ],
    ids=["value", "name", "target", "headers", "many small headers"],
)
def test_a_head_is_read_to_its_limit(rig, huge):
    with connected(rig.url) as place:
        num_sent, answer = sent_until_refused(place, huge, len(huge))
    assert status(answer) == 431
    assert told(answer)["message"].startswith("headers: the limits are 100 of them and 16384")
    assert num_sent < 8_000_000 or len(huge) < 10_000


def test_a_head_within_its_limits_is_served(rig):
    headers = [
        "Host: localhost",
        "X: " + "x" * (MAX_HEAD_BYTES - 200),
        *(["Y:"] * (MAX_HEADERS - 2)),
    ]
    assert status(asked(rig.url, head("/livez", headers=headers))) == 200


def test_the_limits_are_of_each_request(rig):
    large = ["Host: localhost", "X: " + "x" * (MAX_HEAD_BYTES - 200)]
    with connected(rig.url) as place:
        place.sendall(head("/livez", headers=large) * 5)
        place.sendall(head("/livez", headers=[*large, "Connection: close"]))
        assert received(place).count(b"HTTP/1.1 200") == 6


@pytest.mark.parametrize("path", PATHS)
def test_a_body_of_a_gigabyte_is_refused_unread(rig, path):
    declared = head(path, "POST", ["Host: localhost", f"Content-Length: {10**9}"])
    with connected(rig.url) as place:
        place.sendall(declared)
        began_s = time.monotonic()
        answer = answer_on(place)
        assert time.monotonic() - began_s < 0.5
    assert status(answer) == 413
    assert told(answer)["param"] == "body"


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_sends_it_anyway_hears_so(rig, path):
    declared = head(path, "POST", ["Host: localhost", f"Content-Length: {10**9}"])
    with connected(rig.url) as place:
        place.sendall(declared)
        num_sent, answer = sent_until_refused(place, b"x" * 65_536, 10**9)
    assert status(answer) == 413
    assert num_sent < MAX_MESSAGE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_body_without_a_length_is_read_to_its_limit(rig, path):
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with connected(rig.url) as place:
        place.sendall(head(path, "POST", CHUNKED))
        num_sent, answer = sent_until_refused(place, chunk, 10**9)
    assert status(answer) == 413
    assert num_sent < 3 * MAX_MESSAGE_BYTES  # what was under way


@pytest.mark.slow
def test_a_million_tiny_chunks_are_one_body(rig):
    body = json.dumps({"prompt": "fox", "max_tokens": 2}).encode()
    body += b" " * (1_000_000 - len(body))
    content = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with connected(rig.url) as place:
        place.sendall(head("/v1/completions", "POST", [*CHUNKED, "Connection: close"]))
        place.sendall(content)
        assert status(received(place)) == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"prompt":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    ],
    ids=["lists", "objects", "balanced"],
)
def test_deep_json_is_refused(rig, body):
    answer = send(rig.url, "POST", "/v1/completions", body)
    assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error")


@pytest.fixture
def hasty(monkeypatch) -> float:
    """Seconds that a head and a body may take, here and now."""
    for module, name in ((limited_protocol, "HEAD_S"), (connection, "BODY_S")):
        monkeypatch.setattr(module, name, 0.3)
    return 0.3


@pytest.mark.parametrize(
    "beginning",
    [b"GET /livez HTTP/1.1\r\nHost: localhost\r\n", b"GE", b"GET /livez HTTP/1.1\r\nHost: "],
)
def test_a_head_that_does_not_end_is_given_up(rig, hasty, beginning):
    with connected(rig.url) as place:
        place.sendall(beginning)
        seconds, answer = seconds_to_end(place)
    assert status(answer) == 408
    assert told(answer)["type"] == "timeout_error"
    assert hasty * 0.9 < seconds < hasty + 2


def test_a_drop_at_a_time_gains_no_time(rig, hasty):
    with connected(rig.url) as place:
        place.sendall(b"GET /livez HTTP/1.1\r\n")
        began_s = time.monotonic()
        place.settimeout(0.02)
        answer = b""
        while not answer and time.monotonic() - began_s < 10:
            place.sendall(b"X: y\r\n")
            try:
                answer = place.recv(65_536)
            except TimeoutError:
                pass
    assert status(answer) == 408
    assert time.monotonic() - began_s < hasty + 2


def test_a_connection_that_says_nothing_is_ended(rig, hasty):
    with connected(rig.url) as place:
        seconds, answer = seconds_to_end(place)
    assert answer == b""
    assert hasty * 0.9 < seconds < hasty + 2


def test_line_ends_are_no_request(rig, hasty):
    with connected(rig.url) as place:
        place.sendall(head("/livez"))
        assert status(answer_on(place)) == 200
        place.sendall(b"\r\n")  # ends the wait of an idle connection for its next request
        seconds, _ = seconds_to_end(place)
    assert seconds < hasty + 2


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_does_not_end_is_given_up(rig, hasty, path):
    for headers in (["Host: localhost", "Content-Length: 100"], CHUNKED):
        with connected(rig.url) as place:
            place.sendall(head(path, "POST", headers) + b"1\r\n{\r\n")
            began_s = time.monotonic()
            answer = answer_on(place)
            assert status(answer) == 408
            assert told(answer)["param"] == "body"
            assert time.monotonic() - began_s < hasty + 2


def test_an_idle_connection_may_ask_again(rig, hasty):
    with connected(rig.url) as place:
        for _ in range(2):
            place.sendall(head("/livez"))
            assert status(answer_on(place)) == 200
            time.sleep(1.5 * hasty)  # longer than a head may take: it has not begun


def test_a_slow_answer_is_no_slow_request(rig, hasty):
    rig.target.round_s = 0.1
    body = {"prompt": "fox", "max_tokens": 6}
    answer = send(rig.url, "POST", "/v1/completions", body)
    assert answer.status == 200
    assert answer.body["usage"]["completion_tokens"] == 6


def test_what_is_no_http_fills_no_log(rig, caplog):
    upgrade = head(
        "/livez", headers=["Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    )
    for garbage in (b"\x16\x03\x01" * 100, b"GET / HTTP/9.9\r\n\r\n", upgrade):
        asked(rig.url, garbage)
    assert caplog.records == []


def test_slow_clients_hold_nobody_up(rig):
    slow = [connected(rig.url) for _ in range(200)]
    try:
        for place in slow:
            place.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
        began_s = time.monotonic()
        for _ in range(20):
            assert send(rig.url, "GET", "/livez").status == 200
        assert time.monotonic() - began_s < 2
    finally:
        for place in slow:
            place.close()
