"""How a service ends: killed, told to stop under load, while it starts, or out of patience.

Rows 12, 13 and 14 of tests/reliability/rows.py; every service has streams over both APIs.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api.grpc import SERVICES
from tests.reliability.apis import GRPC, HTTP, Answer, ask, places_of, probe
from tests.reliability.loop import run
from tests.reliability.measured import measured
from tests.reliability.scale import is_long
from tests.service.draft_watch import eventually
from tests.service.launched import Launched
from tests.service.test_failures import Streams, assert_told, keep_end, launch  # noqa: F401

PAIR = ("--topology", "1+1", "--speculation", "async", "--drafter", "ngram", "--oversubscribe")
# Of the other two, tests/specserve/processes/test_service_lifecycle.py has one each.
VICTIMS = ("api", "launcher", "target", "forkserver") if is_long() else ("api", "launcher")
NOTICE_S = 1.0
GRACE_S = 60.0

pytestmark = pytest.mark.slow


# --- kill -9 --------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Live processes below `pid`, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found: set[int] = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {each: command_of(each) for each in found - {pid}}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def pid_of(service: Launched, victim: str) -> int:
    """Of one of `VICTIMS`."""
    if victim == "launcher":
        return service.process.pid
    words = {"api": "specserve.api ", "target": "-m target_node ", "forkserver": "forkserver "}
    below = descendants(service.process.pid)
    return next(pid for pid, command in below.items() if words[victim] in command)


def free_ports() -> tuple[str, ...]:
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return "--port", str(one.getsockname()[1]), "--http-port", str(two.getsockname()[1])


def test_whoever_is_killed_leaves_no_process_and_no_port(launch):  # noqa: F811
    ports, service = free_ports(), None
    for victim in VICTIMS:
        service = launch(*PAIR, *ports)
        streams = Streams(service)
        below = descendants(service.process.pid)
        killed_s = time.monotonic()
        os.kill(pid_of(service, victim), signal.SIGKILL)
        if victim == "forkserver":  # nobody depends on it
            assert {each.error for answers in streams.ends().values() for each in answers} == {""}
            service.process.send_signal(signal.SIGTERM)
            killed_s = time.monotonic()
        gone = eventually(lambda below=below: not any(map(is_alive, below)), 20)
        gone_s = time.monotonic() - killed_s
        service.exit_code(20)
        for api, answers in streams.ends().items():
            with measured(12, api) as found:
                found.note(requests=len(answers))
                found.none(
                    finished_though_cut=[each for each in answers if not each.error]
                    if victim != "forkserver"
                    else []
                )
                found.none(orphans=[] if gone else [c for p, c in below.items() if is_alive(p)])
                found.at_most(5.0, **{f"gone_after_{victim}_s": gone_s})
    begin_s = time.monotonic()
    again = launch(*PAIR, *ports)  # the same ports
    places = places_of(again)
    again_s = time.monotonic() - begin_s
    answers = run(asked_once(places))
    assert [(each.error, each.finish_reason) for each in answers] == [("", "length")] * 2
    for api in (GRPC, HTTP):
        with measured(12, api) as found:
            found.note(failed=0, recovery_s=again_s)


async def asked_once(places) -> list[Answer]:
    options = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0}
    return await asyncio.gather(*(ask(api, places, "def", **options) for api in (GRPC, HTTP)))


# --- SIGTERM --------------------------------------------------------------------------------------


async def watch_drain(places, stop: Callable[[], None]) -> tuple[dict[str, float], list[Answer]]:
    """When each probe turned, and what came of requests sent then, and after the notice."""
    turned: dict[str, float] = {}
    async with grpc.aio.insecure_channel(places.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICES[0])
        assert (await probe(places, "/readyz"))[0] == 200
        stop()
        begin_s = time.monotonic()
        while len(turned) < 2 and time.monotonic() < begin_s + NOTICE_S:
            if (await probe(places, "/readyz")) == (503, "draining"):
                turned.setdefault(HTTP, time.monotonic() - begin_s)
            if (await health.Check(request)).status != health_pb2.HealthCheckResponse.SERVING:
                turned.setdefault(GRPC, time.monotonic() - begin_s)
        taken = await asked_once(places)
        await asyncio.sleep(max(0.0, begin_s + NOTICE_S + 0.5 - time.monotonic()))
        refused = await asked_once(places)
    return turned, [*taken, *refused]


def test_a_drain_is_announced_then_refuses_and_finishes_what_runs(launch):  # noqa: F811
    flags = ("--drain-notice-s", f"{NOTICE_S:g}", "--drain-timeout-s", f"{GRACE_S:g}")
    service = launch(*flags, "--ballast", "60M")
    streams = Streams(service, num=8, max_tokens=300 if is_long() else 180)
    stopped_s = time.monotonic()
    stop = lambda: service.process.send_signal(signal.SIGTERM)  # noqa: E731
    turned, late = run(watch_drain(places_of(service), stop))
    assert service.exit_code(GRACE_S + 20) == 0, service.output
    exit_s = time.monotonic() - stopped_s
    for place, api in enumerate((GRPC, HTTP)):
        running, taken, refused = streams.ends()[api], late[place], late[place + 2]
        with measured(13, api) as found:
            found.note(requests=len(running))
            found.none(failed=[e for e in running if (e.error, e.finish_reason) != ("", "length")])
            found.none(refused_too_early=[taken] if taken.error else [])
            assert (refused.error, refused.message[:10]) == ("UNAVAILABLE", "draining: ")
            assert "requests run to their end" in refused.message
            found.at_most(NOTICE_S, is_time=False, detection_s=turned[api])
            found.at_most(NOTICE_S + GRACE_S, is_time=False, exit_s=exit_s)
    assert "draining: " in service.output
    assert "drained: no request runs" in service.output


def test_a_drain_that_runs_out_of_time_ends_streams_with_an_error(launch):  # noqa: F811
    service = launch("--drain-timeout-s", "1")
    streams = Streams(service)
    stopped_s = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.exit_code(60) == 0
    exit_s = time.monotonic() - stopped_s
    assert_told(streams)
    assert "out of time: 2 requests are cut" in service.output
    keep_end(14, streams, stopped_s, 1.0 + 5.0, exit_after_its_grace_s=exit_s)


def test_a_service_that_is_stopped_while_it_starts_ends_at_once(launch):  # noqa: F811
    exits_s: list[float] = []
    for wait_s in (0.3, 0.8, 1.5, 2.5, 4.0) if is_long() else (1.0,):
        service = launch(*PAIR)
        time.sleep(wait_s)
        stopped_s = time.monotonic()
        below = descendants(service.process.pid)
        service.process.send_signal(signal.SIGTERM)
        assert service.exit_code(30) == 0, service.output
        exits_s.append(time.monotonic() - stopped_s)
        assert [command for pid, command in below.items() if is_alive(pid)] == []
    for api in (GRPC, HTTP):
        with measured(14, api) as found:
            found.at_most(5.0, exit_while_starting_s=max(exits_s))
