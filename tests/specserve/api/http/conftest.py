"""A plain HTTP client, which says no more than it is told."""

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from openai import OpenAI


class Answer(NamedTuple):
    """Of one request."""

    status: int
    headers: dict[str, str]
    body: Any  # JSON, or bytes that are none


def send(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """`body`: bytes as they are, anything else as JSON."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(method, path, content, headers or {})
        response = connection.getresponse()
        found = response.read()
    finally:
        connection.close()
    names = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Answer(response.status, names, json.loads(found))
    except ValueError:
        return Answer(response.status, names, found)


@pytest.fixture
def ask(rig) -> Callable[..., Answer]:
    """(method, path, body) to the shared service."""
    return lambda method, path, body=None, **more: send(rig.url, method, path, body, **more)


@pytest.fixture
def client(rig) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def events_of(content: bytes) -> list[Any]:
    """The JSON of a stream's events; "[DONE]" as it is."""
    lines = [line for line in content.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    found = [line.removeprefix("data: ") for line in lines]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


class opened:  # noqa: N801 - reads as what it does
    """A request whose answer nobody has read yet."""

    def __init__(self, rig, body, path="/v1/completions") -> None:
        host, _, port = rig.url.removeprefix("http://").partition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=20)
        self._request = "POST", path, json.dumps(body)

    def __enter__(self) -> http.client.HTTPConnection:
        self.connection.request(*self._request)
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()
