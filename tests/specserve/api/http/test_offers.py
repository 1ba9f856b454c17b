"""Requests that offer another protocol, as Java's own client does first: they stay HTTP/1.1."""

import json

import pytest

from tests.specserve.api.http.wire import answer_on, connected, head, received, status

H2C = [
    "Host: localhost", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
]  # fmt: skip
BODY = json.dumps({"prompt": "fox", "max_tokens": 2}).encode()
ASK = head("/v1/completions", "POST", [*H2C, f"Content-Length: {len(BODY)}"]) + BODY
NEXT = head("/livez")


def text_of(answer: bytes) -> str:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]


@pytest.mark.parametrize("size", [1, 7, 64, len(ASK) - len(BODY), len(ASK)])
def test_the_body_of_an_offer_is_read_however_it_arrives(rig, size):
    with connected(rig.url) as place:
        for start in range(0, len(ASK), size):
            place.sendall(ASK[start : start + size])
        answer = answer_on(place)
        assert status(answer) == 200
        assert text_of(answer) == rig.tokenizer.decode(rig.script_ids[:2])
        place.sendall(NEXT)
        assert status(answer_on(place)) == 200


def test_a_body_in_pieces_is_read(rig):
    pieces = b"".join(b"%x\r\n%b\r\n" % (1, BODY[k : k + 1]) for k in range(len(BODY)))
    with connected(rig.url) as place:
        place.sendall(head("/v1/completions", "POST", [*H2C, "Transfer-Encoding: chunked"]))
        place.sendall(pieces + b"0\r\n\r\n")
        assert status(answer_on(place)) == 200


@pytest.mark.parametrize("count", [1, 2000])
def test_offers_one_after_another_are_all_answered(rig, caplog, count):
    offer = head("/livez", headers=["Host: localhost", "Connection: upgrade", "Upgrade: websocket"])
    with connected(rig.url) as place:
        place.sendall(
            offer * count + head("/livez", headers=["Host: localhost", "Connection: close"])
        )
        assert received(place).count(b"HTTP/1.1 200") == count + 1
    assert caplog.records == []


def test_an_offer_that_ends_its_connection_ends_it(rig):
    with connected(rig.url) as place:
        place.sendall(
            head(
                "/livez", headers=["Host: localhost", "Connection: close, upgrade", "Upgrade: h2c"]
            )
        )
        answer = received(place)
    assert status(answer) == 200
    assert b"connection: close" in answer.lower()


def test_nobody_is_connected_to_anywhere(rig):
    with connected(rig.url) as place:
        place.sendall(head("localhost:80", "CONNECT") + b"more")
        assert status(received(place)) == 400
