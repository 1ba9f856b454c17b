"""Replicas on Ray Serve: what one takes, what is refused, and two that serve."""

import asyncio
import gc
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specserve.errors import InvalidField, Unsupported
from specserve.replicas import Bundle, Replica, app, bundle_of, config_of

FLAGS = ("--target", "tiny", "--oversubscribe", "--device", "cpu")
PORT = 29_873
URL = f"http://127.0.0.1:{PORT}"  # of Ray's proxy


@pytest.mark.parametrize(
    ("flags", "device", "expected"),
    [
        ("", "cpu", Bundle(1, 0)),
        ("--topology 2+1 --threads 4", "cpu", Bundle(12, 0)),
        ("--topology 2+2 --threads 4 --draft-threads 1", "cpu", Bundle(10, 0)),
        ("--topology 4+1", "cuda", Bundle(5, 5)),
    ],
)
def test_a_topology_is_what_a_replica_takes(flags: str, device: str, expected: Bundle):
    found = bundle_of(config_of(flags.split()), device)
    assert found == expected
    assert found.resources.get("GPU", 0) == expected.num_gpus
    assert found.resources["CPU"] == expected.num_cpus


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"topology": "1+1"}, "topology", "is not known here; type replicas or flags"),
        ({"replicas": "0"}, "replicas", "'0' is no number from 1"),
        ({"replicas": "two"}, "replicas", "'two' is no number from 1"),
        ({"flags": "--gone 3"}, "flags", "--gone is no flag of specserve launch"),
        ({"flags": "--threads"}, "flags", "--threads: expected one argument"),
        ({"flags": "--threads none"}, "topology.threads", "none"),
        ({"flags": "--target 'tiny"}, "flags", 'No closing quotation in "--target \'tiny"'),
    ],
)
def test_what_is_not_understood_is_refused(given: dict[str, str], field: str, told: str):
    with pytest.raises(InvalidField) as caught:
        app(given)
    assert caught.value.field == field
    assert told in caught.value.problem


def test_a_service_of_several_nodes_is_no_replica():
    words = "--nnodes 2 --rendezvous 127.0.0.1:1 --topology 2+0"
    with pytest.raises(InvalidField, match=r"topology\.nnodes: a replica is on one machine"):
        bundle_of(config_of(words.split()), "cpu")


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=r"pip install 'specserve\[ray\]'"):
        app({})


# --- with Ray --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def serve() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'specserve[ray]'")
    serve = pytest.importorskip("ray.serve")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield serve
    serve.shutdown()
    ray.shutdown()
    with warnings.catch_warnings():  # Ray lets go of processes that it has not waited for
        warnings.simplefilter("ignore")
        gc.collect()


def ask(url: str) -> str:
    body = b'{"prompt": "import", "max_tokens": 20, "temperature": 0}'
    request = urllib.request.Request(f"{url}/v1/completions", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def services() -> set[int]:
    """Launches of this user that a replica has started."""
    found = set()
    for folder in os.listdir("/proc"):
        try:
            words = Path("/proc", folder, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"specserve" in words and b"launch" in words and b"--ready-fd" in words:
            found.add(int(folder))
    return found


@pytest.mark.slow
def test_two_replicas_answer_alike_and_one_that_dies_is_started_again(serve: Any):
    before = services()
    serve.run(app({"replicas": "2", "flags": " ".join(FLAGS)}))
    texts = {ask(URL) for _ in range(8)}
    assert len(texts) == 1
    first = services() - before
    assert len(first) == 2
    os.kill(min(first), signal.SIGKILL)
    deadline_s, failed_s = time.monotonic() + 240, []
    while len((services() - before) - first) != 1 or len(services() - before) != 2:
        assert time.monotonic() < deadline_s
        try:
            assert ask(URL) in texts
        except urllib.error.HTTPError:
            failed_s.append(time.monotonic())
        time.sleep(0.1)
    # None but those that were under way when it was killed, or went to it in that moment.
    assert len(failed_s) <= 1
    assert {ask(URL) for _ in range(8)} == texts
    serve.delete("default")
    deadline_s = time.monotonic() + 60
    while services() - before:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


@pytest.mark.slow
def test_a_request_is_passed_on_as_it_is():
    pytest.importorskip("aiohttp", reason="aiohttp comes with Ray Serve")
    from starlette.requests import Request

    replica = Replica(FLAGS)

    async def status_of(headers: list[tuple[bytes, bytes]]) -> int:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http", "method": "GET", "path": "/v1/models", "query_string": b"",
            "headers": headers,
        }  # fmt: skip
        answer = await replica(Request(scope, receive))
        _ = [piece async for piece in answer.body_iterator]
        return answer.status_code

    async def run() -> list[int]:
        await replica.check_health()
        found = [
            await status_of([(b"host", b"localhost:8000")]),
            await status_of([(b"host", b"rebound.example.org")]),
        ]
        await replica._connections().close()
        return found

    try:
        assert asyncio.run(run()) == [200, 403]  # as the service by itself
    finally:
        replica.__del__()
