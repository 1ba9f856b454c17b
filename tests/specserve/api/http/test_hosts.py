"""Without keys: which web pages can use a service, and what else can; with keys nothing changes."""

import asyncio
import socket

import pytest

from specserve.api.http.guard import PROBES
from specserve.api.http.hosts import KnownHosts
from specserve.errors import Forbidden
from specserve.settings.config import ServerConfig
from specserve.settings.door import require_safe_door
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.wire import asked, head, status
from tests.specserve.api.key_rig import ALICE, keyed, rig_of_all

__all__ = ["keyed", "rig_of_all"]

MACHINE = socket.gethostname()
OURS = [
    "localhost", "LOCALHOST:8000", "localhost.:8000", "any.localhost", "specserve:8000",
    "gpu7.local", "host.docker.internal:8000", "127.0.0.1:8000", "0.0.0.0",
    "192.0.2.7:80", "[::1]:8000", "[fd00::7]", MACHINE, f"{MACHINE}:8000",
]  # fmt: skip
STRANGERS = [
    "example.org", "example.org:8000", "localhost.example.org", "localhost@example.org",
    "127.0.0.1.example.org", "x.localhosts", f"{MACHINE}.example.org", "localhost:x", "[::1", "",
]  # fmt: skip
BODY = {"prompt": "the", "max_tokens": 1}


def problem(hosts: KnownHosts, **headers: str) -> str | None:
    """What is wrong with a request that has them."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        asyncio.run(hosts.require(raw))
    except Forbidden as error:
        return str(error)
    return None


def known(*allowed: str) -> KnownHosts:
    return KnownHosts(require_safe_door(ServerConfig(allowed_hosts=allowed)).allowed_hosts)


@pytest.mark.parametrize("host", OURS)
def test_this_machine_may_be_named_in_many_ways(host, ask):
    assert ask("GET", "/v1/models", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", STRANGERS)
def test_a_name_that_somebody_made_lead_here_reads_nothing(host, ask):
    for method, path, body in (
        ("GET", "/status", None), ("GET", "/", None), ("GET", "/nothing", None),
        ("POST", "/v1/completions", BODY),
    ):  # fmt: skip
        answer = ask(method, path, body, headers={"Host": host})
        assert (answer.status, answer.body["error"]["type"]) == (403, "permission_error")
        assert answer.body["error"]["code"] == 403


def test_a_refusal_names_the_flag(ask):
    answer = ask("GET", "/version", headers={"Host": "Gpu7.Example.org:8000"})
    told = answer.body["error"]["message"]
    assert told.startswith("Host: 'gpu7.example.org' is no name that this service is known by")
    assert "launch with --allowed-hosts gpu7.example.org" in told
    answer = ask("GET", "/version", headers={"Host": "x; rm -r /"})
    assert "--allowed-hosts NAME" in answer.body["error"]["message"]


def test_one_good_name_of_two_is_not_enough(rig):
    two = ["Host: localhost", "Host: example.org"]
    assert status(asked(rig.url, head("/v1/models", headers=two))) in (400, 403)
    assert status(asked(rig.url, head("/v1/models", headers=two[::-1]))) in (400, 403)
    assert status(asked(rig.url, head("/v1/models", headers=[], version="1.0"))) == 200


@pytest.mark.parametrize("path", sorted(PROBES))
def test_a_probe_is_answered_whatever_it_is_called_by(path, ask):
    strange = {"Host": "pod-7.example.org", "Origin": "https://example.org"}
    assert ask("GET", path, headers=strange).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://example.org", "null", "http://127.0.0.1:1", "https://127.0.0.1", "file://", "x", ""],
)
def test_a_page_of_another_place_makes_nothing_run(origin, rig, ask):
    simple = {"Origin": origin, "Content-Type": "text/plain"}
    answer = ask("POST", "/v1/completions", BODY, headers=simple)
    assert answer.status == 403
    assert answer.body["error"]["message"].startswith("Origin: ")
    assert "--allowed-hosts" in answer.body["error"]["message"]
    assert not rig.target.messages


def test_the_page_of_the_service_may_ask_it(rig, ask):
    assert ask("POST", "/v1/completions", BODY, headers={"Origin": rig.url}).status == 200


def test_a_port_that_is_not_said_is_the_usual_one():
    hosts = known("gpu7.example.org")
    assert problem(KnownHosts(()), host="localhost", origin="http://localhost:80") is None
    assert problem(KnownHosts(()), host="localhost:443", origin="https://localhost") is None
    assert problem(KnownHosts(()), host="localhost:443", origin="http://localhost") is not None
    assert problem(hosts, host="gpu7.example.org", origin="https://gpu7.example.org") is None


def test_what_is_allowed_may_be_asked_by_and_come_from():
    hosts = known("GPU7.example.org.", "[fd00::7]", "chat.example.org")
    assert problem(hosts, host="gpu7.example.org:8000") is None
    assert problem(hosts, host="localhost", origin="https://chat.example.org:3000") is None
    assert problem(hosts, host="localhost", origin="http://[fd00::7]:3000") is None
    assert "example.org" in (problem(hosts, host="example.org") or "")
    assert problem(hosts, host="localhost", origin="http://localhost:3000") is not None
    assert problem(known("localhost"), host="localhost", origin="http://localhost:3000") is None
    assert problem(known("*"), host="example.org", origin="null") is None


def test_the_full_name_of_the_machine_is_looked_up_once_and_only_when_it_is_like_it(monkeypatch):
    looked_up = []

    def full_name() -> str:
        looked_up.append(None)
        return f"{MACHINE}.Example.org"

    monkeypatch.setattr(socket, "getfqdn", full_name)
    hosts = KnownHosts(())
    assert problem(hosts, host="example.org") is not None
    assert not looked_up
    assert problem(hosts, host=f"{MACHINE}.example.org:8000") is None
    assert problem(hosts, host=f"{MACHINE}.example.com") is not None
    assert len(looked_up) == 1


def test_where_keys_are_asked_for_nothing_changes(keyed):
    strange = {"Host": "example.org", "Origin": "https://example.com"}
    answer = send(
        keyed.url, "GET", "/v1/models", headers={**strange, "Authorization": f"Bearer {ALICE}"}
    )
    assert answer.status == 200
