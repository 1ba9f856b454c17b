"""No path of the HTTP API without a key but the probes, however it is asked for."""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from specserve.api.http.app import make_app
from specserve.api.http.guard import PUBLIC, KeyRequired
from tests.reliability.figures import keep
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.wire import asked, connected, head, received, status
from tests.specserve.api.key_rig import ADMIN, ALICE, keyed, rig_of_all

__all__ = ["keyed", "rig_of_all"]

OTHER_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
BAD_HEADERS = {
    "none": [],
    "empty": ["Authorization:"],
    "no key": ["Authorization: Bearer"],
    "a key without a scheme": [f"Authorization: {ALICE}"],
    "another scheme": [f"Authorization: Basic {ALICE}"],
    "the beginning of a key": [f"Authorization: Bearer {ALICE[:-1]}"],
    "more than a key": [f"Authorization: Bearer {ALICE}0"],
    "a key in other letters": [f"Authorization: Bearer {ALICE.upper()}"],
    "a name": ["Authorization: Bearer alice"],
    "a line of the file": [f"Authorization: Bearer alice {ALICE}"],
    "a comment of the file": ["Authorization: Bearer # two keys of one name are one tenant"],
    "a list": [f"Authorization: Bearer {ALICE}, Bearer {ALICE}"],
    "two": [f"Authorization: Bearer {ALICE}"] * 2,
    "a good one behind a bad one": ["Authorization: Bearer x", f"Authorization: Bearer {ALICE}"],
    "other headers": [f"X-Api-Key: {ALICE}", f"Proxy-Authorization: Bearer {ALICE}"],
    "a cookie": [f"Cookie: authorization=Bearer {ALICE}"],
    "an underscore": [f"Authorization_: Bearer {ALICE}"],
    "letters beyond ASCII": ["Authorization: Bearer \xff\xfe"],
}
# By which some server or proxy says that another path, method or sender is meant.
OVERRIDES = {
    "method": ["X-HTTP-Method-Override: GET", "X-HTTP-Method: GET", "X-Method-Override: GET"],
    "probe": ["X-Original-URL: /health", "X-Rewrite-URL: /livez", "X-Forwarded-Uri: /readyz"],
    "prefix": ["X-Forwarded-Prefix: /health", "X-Script-Name: /health", "SCRIPT_NAME: /health"],
    "sender": ["X-Forwarded-For: 127.0.0.1", "X-Real-IP: ::1", "Forwarded: for=127.0.0.1"],
    "host": ["X-Forwarded-Host: localhost", "X-Forwarded-Proto: https"],
    "upgrade": ["Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"],
    "websocket": ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAA"],
    "hop": ["Connection: close, Authorization"],
    "preflight": ["Origin: http://h", "Access-Control-Request-Method: GET"],
}


def disguises(path: str) -> list[str]:
    """Targets that some server might take for `path`, or for a probe."""
    encoded = "".join(f"%{ord(each):02x}" for each in path[1:])
    return [
        f"/{path}",
        f"//{path}",
        f"{path}/",
        f"{path}//",
        f"{path}/.",
        f"{path}/..{path}",
        f"/.{path}",
        f"/v1/..{path}",
        f"/%{ord(path[1]):02x}{path[2:]}",
        f"/{encoded}",
        f"/%2e%2e{path}",
        f"/%2f{path[1:]}",
        path.upper(),
        path.replace("/", "\\"),
        f"{path}?x=1",
        f"{path}?/health",
        f"{path}#/health",
        f"{path};/health",
        f"{path}%00",
        f"{path}%20",
        f"{path}%3f/health",
        f"{path}/health",
        f"{path}.json",
        *(f"{probe}/..{path}" for probe in sorted(PUBLIC)),
        f"/health{path}",
        f"/health%2f..{path}",
        f"/health/%2e%2e{path}",
        f"/health;{path}",
        f"/health%00{path}",
        f"http://127.0.0.1{path}",
        f"http://127.0.0.1/{path}",
        f"http://health{path}",
        f"http:///health{path}",
        f"https://user:pass@h{path}",
        f"ws://h{path}",
        path[1:],
        "*",
        "",
    ]


@pytest.fixture(scope="module")
def paths(keyed) -> dict[str, set[str]]:
    """Methods of every path of the application that is served, but those that are public."""
    app = make_app(keyed.service)
    assert isinstance(app, KeyRequired)
    inner = app._app
    assert isinstance(inner, Starlette)
    assert all(type(route) is Route for route in inner.routes)
    found = {route.path: route.methods for route in inner.routes}
    assert found.keys() > PUBLIC
    return {
        path.replace("{name:path}", "scripted"): methods
        for path, methods in found.items()
        if path not in PUBLIC
    }


def is_refused(answer: bytes) -> bool:
    """401, or no HTTP in the parser's eyes; both say nothing else, of nothing else."""
    content = answer.partition(b"\r\n\r\n")[2]
    if status(answer) == 401:
        lines = answer.lower().split(b"\r\n")
        told = not content or json.loads(content)["error"]["type"] == "authentication_error"
        return told and b"www-authenticate: bearer" in lines
    return status(answer) == 400 and b"is no HTTP" in content


def test_no_path_answers_without_a_key(keyed, paths):
    requests = []
    for path, methods in paths.items():
        for method in sorted({*methods, *OTHER_METHODS, "get"}):
            requests.append(head(path, method))
            requests += [head(path, method, ["Host: h", *more]) for more in OVERRIDES.values()]
            requests += [head(path, method, [], version) for version in ("1.0", "1.1", "2.0")]
        own = sorted(methods)[0]
        requests += [head(path, own, ["Host: h", *more]) for more in BAD_HEADERS.values()]
        requests += [head(each, own) for each in disguises(path)]
        requests += [head(each, own, [], "1.0") for each in disguises(path)]
        requests.append(head(path, own, ["Host: h", "Host: health"]))
        requests.append(f"{own} {path}\r\n\r\n".encode())  # HTTP/0.9
        requests.append(f"{own} {path} HTTP/1.1\nHost: h\n\n".encode())
    requests.append(head("h:443", "CONNECT"))
    bypasses = [request for request in requests if not is_refused(asked(keyed.url, request))]
    keep(26, "HTTP", requests=len(requests), bypasses=len(bypasses))
    assert len(requests) > 1000
    assert bypasses == []


def test_each_request_of_a_connection_needs_its_own_key(keyed):
    good = head("/v1/models", headers=["Host: h", f"Authorization: Bearer {ALICE}"])
    for first in (good, head("/livez")):
        with connected(keyed.url) as connection:
            connection.sendall(first + head("/v1/models"))
            answer = received(connection)
        second = answer[answer.rindex(b"HTTP/1.1 ") :]
        assert (status(answer), status(second)) == (200, 401)


def test_no_request_hides_in_the_body_of_another(keyed):
    hidden = head("/v1/models")
    both = [f"Content-Length: {len(hidden)}", "Transfer-Encoding: chunked"]
    with connected(keyed.url) as connection:
        connection.sendall(head("/livez", "POST", ["Host: h", *both]) + b"0\r\n\r\n" + hidden)
        answer = received(connection)
    assert b'"object"' not in answer
    assert status(answer) == 400


def test_every_path_takes_a_key(keyed, paths):
    for key in (ALICE, ADMIN):
        for path, methods in paths.items():
            headers = {"Authorization": f"bearer {key}"}
            answer = send(keyed.url, sorted(methods)[-1], path, headers=headers)
            # 400: an empty body; 404: the name of no response
            assert answer.status in ((404,) if "{" in path else (200, 400)), path


@pytest.mark.parametrize("path", sorted(PUBLIC - {"/"}))
def test_probes_need_no_key_and_say_little(keyed, path):
    answer = send(keyed.url, "GET", path)
    assert answer.status == 200
    assert set(answer.body) == {"status"}


def test_a_body_is_not_waited_for_before_the_key(keyed):
    headers = ["Host: h", "Content-Length: 1000000"]
    with connected(keyed.url) as connection:
        connection.sendall(head("/v1/completions", "POST", headers) + b"{")
        assert status(connection.recv(65_536)) == 401


def test_a_refusal_says_what_to_send_and_nothing_of_the_key(keyed):
    for sent, words in ("", "Authorization: Bearer KEY"), (f"Bearer {ALICE[:-1]}", "not known"):
        answer = send(keyed.url, "GET", "/v1/models", headers={"Authorization": sent})
        assert words in answer.body["error"]["message"]
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ALICE[:8] not in str(answer)
