"""A real service that others can reach: what they can reach of it, and what comes of it."""

import math
import pickle
import random
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from specserve.api.keys import Tenant, salt_of
from specserve.cli import main
from specserve.client import Client
from tests.reliability.figures import keep
from tests.reliability.scale import is_long, scaled
from tests.service import canary
from tests.service.chaos import end
from tests.service.draft_watch import draft_pids, open_link
from tests.service.sockets import family_of, listeners, unix_paths
from tests.service.test_failures import Launched
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.wire import asked, connected, head, sent_until_refused
from tests.specserve.api.key_rig import ALICE, BOB, bearer, key_file
from tests.specserve.api.test_grpc_keys import METHODS

PROMPT = "def main():\n    "
ROW_21_MIB = 50
TOPOLOGY = "2+1" if is_long() else "1+1"  # ranks of one target meet over gloo


class Exposed(NamedTuple):
    """A launch on every interface, as its clients see it from this machine."""

    launched: Launched
    grpc: str  # host:port
    url: str  # of HTTP

    @property
    def pids(self) -> list[int]:
        return family_of(self.launched.process.pid)

    @property
    def folder(self) -> Path:
        """That of the run."""
        (command, *_) = self.launched.children("specserve.api").values()
        words = command.split()
        return Path(words[words.index("--control-dir") + 1])

    def text(self, key: str = ALICE) -> str:
        with Client(self.grpc, api_key=key) as client:
            return client.generate(PROMPT, max_tokens=40, temperature=0).text


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposed]:
    keys = key_file(tmp_path_factory.mktemp("keys"))
    launched = Launched(
        "--host", "0.0.0.0", "--api-key-file", str(keys), "--topology", TOPOLOGY, "--oversubscribe",
        "--speculation", "async",
    )  # fmt: skip
    try:
        grpc_place = launched.address()
        found = re.search(r"OpenAI-compatible API at http://127\.0\.0\.1:(\d+)", launched.output)
        assert found, launched.output
        assert "on all interfaces: 0.0.0.0:" in launched.output
        yield Exposed(launched, grpc_place, f"http://127.0.0.1:{found[1]}")
    finally:
        end(launched)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_nobody_is_let_in_by_mistake(host, capsys):
    assert main(["launch", "--target", "tiny", "--port", "0", "--host", host]) == 2
    told = capsys.readouterr().err
    assert f"server.host: {host} can be reached by others" in told
    assert "type --api-key-file FILE with a key a line, or --insecure" in told


@pytest.mark.slow
def test_only_the_api_can_be_reached_from_elsewhere(exposed):
    exposed.text()  # links and groups are up
    found = listeners(exposed.pids)
    ports = {int(place.rpartition(":")[2]) for place in (exposed.grpc, exposed.url)}
    unexpected = {each for each in found if not each.is_loopback and each.port not in ports}
    for api in ("gRPC", "HTTP"):
        keep(25, api, listeners=len(found), unexpected=len(unexpected))
    assert unexpected == set()
    assert {each.port for each in found if not each.is_loopback} == ports
    # gRPC takes every address of this machine for those of IPv6 as well.
    assert {each.address for each in found if each.port in ports} <= {"0.0.0.0", "::"}


@pytest.mark.slow
def test_its_own_sockets_are_in_a_folder_of_its_own(exposed):
    folder = exposed.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    paths = unix_paths(exposed.pids)
    assert paths
    assert {Path(path).parent for path in paths} == {folder}


@pytest.mark.slow
def test_no_process_shows_a_key(exposed):
    keys = [key.encode() for key in (ALICE, BOB)]
    for pid in exposed.pids:
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not any(key in content for key in keys)
    for path in exposed.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(key in content for key in keys)
    assert not any(key.decode() in exposed.launched.output for key in keys)


@pytest.mark.slow
def test_nothing_that_is_sent_is_executed(exposed, tmp_path):
    path = tmp_path / "canary"
    payloads = canary.canaries(path)
    for payload in payloads:
        pickle.loads(payload)
        path.unlink()  # raises unless it was there
    text, num_sent = exposed.text(), 0
    hosts = [place.removeprefix("http://").split(":") for place in (exposed.grpc, exposed.url)]
    for payload in payloads:
        for request in canary.requests_with(payload, ALICE):
            asked(exposed.url, request)
            num_sent += 1
        num_sent += over_grpc(exposed.grpc, payload)
        for host, port in hosts:
            canary.send_raw(socket.AF_INET, (host, int(port)), payload)
            num_sent += 1
        for name in unix_paths(exposed.pids):
            canary.send_raw(socket.AF_UNIX, name, payload)
            num_sent += 1 + canary.send_over_zmq(Path(name), payload)
        (pid,) = draft_pids(exposed.launched.process.pid).values()
        region = open_link(pid)
        num_sent += canary.write_into_link(region, payload)
        region.close()
    assert exposed.text() == text
    for api in ("gRPC", "HTTP"):
        keep(24, api, requests=num_sent, executed=int(path.exists()))
    assert num_sent > 300
    assert not path.exists()


def over_grpc(address: str, payload: bytes) -> int:
    """As the message of every method and as metadata, with a key and without; how many calls."""
    num_sent = 0
    with grpc.insecure_channel(address) as channel:
        for path in METHODS:
            for metadata in ((), bearer(ALICE), (*bearer(ALICE), ("x-bin", payload))):
                call = channel.stream_stream(path)(iter([payload]), metadata=metadata, timeout=10)
                with pytest.raises(grpc.RpcError):
                    next(call)
                num_sent += 1
    return num_sent


def resident_mib(pid: int) -> float:
    (line,) = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(line) / 1024


@pytest.mark.slow
def test_what_is_too_large_takes_no_memory(exposed):
    (pid,) = exposed.launched.children("specserve.api")
    exposed.text()
    before_mib, most_mib = resident_mib(pid), 0.0
    for _ in range(scaled(10)):
        send_too_much(exposed)
        most_mib = max(most_mib, resident_mib(pid))
    rise_mib = most_mib - before_mib
    keep(21, "HTTP", rise_mib=round(rise_mib, 1))
    assert rise_mib < ROW_21_MIB
    assert exposed.text()


def send_too_much(exposed: Exposed) -> None:
    key = f"Authorization: Bearer {ALICE}"
    path, host = "/v1/completions", "Host: h"
    gigabyte = head(path, "POST", [host, key, f"Content-Length: {10**9}"])
    chunked = head(path, "POST", [host, key, "Transfer-Encoding: chunked"])
    for beginning, piece in (
        (gigabyte, b"x" * 65_536),
        (chunked, b"10000\r\n" + b" " * 65_536 + b"\r\n"),
        (b"", head(path, headers=[host, key, "X: " + "x" * 10_000_000])),
        (head(path, "POST", [host, key, "Content-Length: 2000000"]), b"[" * 2_000_000),
    ):
        with connected(exposed.url) as place:
            place.sendall(beginning)
            _, answer = sent_until_refused(place, piece, 10**9)
            assert answer.split()[1] in (b"413", b"431", b"400")
    with grpc.insecure_channel(exposed.grpc) as channel:
        for content, more in ((b"x" * 17 * 2**20, ()), (b"", (("x", "y" * 10_000_000),))):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(METHODS[0])(content, metadata=(*bearer(ALICE), *more))


def cached_and_seconds(client: Client, prompt: list[int], salt: str = "") -> tuple[int, float]:
    """Tokens of a prompt that were found in the cache, and how long its first token took."""
    began_s = time.monotonic()
    found = client.generate(prompt, max_tokens=1, cache_salt=salt)
    return found.usage.num_cached_tokens, time.monotonic() - began_s


def separation(first: list[float], second: list[float]) -> float:
    """How often one of `first` is above one of `second`: .5 where nobody could tell them apart."""
    above = sum((a > b) + 0.5 * (a == b) for a in first for b in second)
    return above / len(first) / len(second)


@pytest.mark.slow
def test_no_tenant_finds_what_another_has_cached(exposed):
    count, rng = scaled(200, 20), random.Random(28)
    hits, own, of_known, of_new = 0, [], [], []
    with (
        Client(exposed.grpc, api_key=ALICE) as alice,
        Client(exposed.grpc, api_key=BOB) as bob,
    ):
        alices = salt_of(Tenant("name:alice", "", is_admin=False), "")
        for index in range(count):
            known, new = ([rng.randrange(300) for _ in range(480)] for _ in range(2))
            salt = ("", "x", alices)[index % 3]  # what both say, or what stands for Alice
            cached_and_seconds(alice, known, "x" if salt == "x" else "")
            asked_for = [(known, of_known), (new, of_new)]
            for prompt, seconds in asked_for[:: rng.choice((1, -1))]:
                num_cached, took_s = cached_and_seconds(bob, prompt, salt)
                hits += num_cached > 0
                seconds.append(took_s)
            num_cached, took_s = cached_and_seconds(alice, known, "x" if salt == "x" else "")
            assert num_cached >= 448  # so there was something to be found
            own.append(took_s)
    apart, control = separation(of_new, of_known), separation(of_new, own)
    keep(28, "gRPC", requests=2 * count, hits=hits, auc=round(apart, 3), auc_own=round(control, 3))
    assert hits == 0
    assert control > 0.7  # one's own prompts are told from others by time
    spread = math.sqrt((2 * count + 1) / (12 * count * count))  # of guesses
    assert abs(apart - 0.5) < 5 * spread


@pytest.mark.slow
def test_both_apis_serve_who_has_a_key_and_nobody_else(exposed):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    answer = send(
        exposed.url, "POST", "/v1/completions", body, headers={"Authorization": f"Bearer {BOB}"}
    )
    assert answer.body["choices"][0]["text"] == exposed.text()
    assert send(exposed.url, "POST", "/v1/completions", body).status == 401
