"""An engine whose loop stands still while its process, gRPC and HTTP live; ranks that disagree.

Rows 11 and 29 of tests/reliability/rows.py.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api.grpc import SERVICES
from tests.reliability import faults
from tests.reliability.apis import GRPC, HTTP, Answer, Places, ask, places_of, probe
from tests.reliability.loop import begin, run
from tests.reliability.measured import measured
from tests.reliability.scale import scaled
from tests.reliability.streams import ask_all, seeded
from tests.run_first import run_first
from tests.service.chaos import end
from tests.service.launched import Launched

HANG_S = 5.0  # the service ends after this
PERIOD_S = HANG_S / 4  # of silence, after which its health is bad
WEDGED_S = 3.5

pytestmark = pytest.mark.slow


class Probes:
    """Asks for the health of a service all the time, over both APIs."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.seen: dict[str, list[tuple[float, bool]]] = {}
        self._over = threading.Event()

    def __enter__(self) -> "Probes":
        self._ending = begin(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ending.result(30)

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._places.grpc) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not self._over.is_set():
                for path in ("/livez", "/readyz"):
                    status, _ = await probe(self._places, path)
                    self._note(path, status == 200)
                for name in ("", SERVICES[0]):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                    serving = health_pb2.HealthCheckResponse.SERVING
                    self._note(f"health {name!r}", answer.status == serving)
                await asyncio.sleep(0.02)

    def _note(self, name: str, is_well: bool) -> None:
        changes = self.seen.setdefault(name, [])
        if not changes or changes[-1][1] != is_well:
            changes.append((time.monotonic(), is_well))


async def streams_of(places: Places) -> list[Answer]:
    """One over each API, long enough to be there all the time."""
    options = {"max_tokens": 400, "ignore_eos": True, "temperature": 0.0}
    return await asyncio.gather(*(ask(api, places, "import", **options) for api in (GRPC, HTTP)))


def test_probes_fail_while_the_engine_stands_still_and_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    faults.prepare(monkeypatch, tmp_path, WEDGED_S)
    service = Launched("--set", f"engine.hang_timeout_s={HANG_S:g}", "--ballast", "30M")
    try:
        places = places_of(service)
        (target,) = service.children("target_node")
        with Probes(places) as probes:
            streaming = begin(streams_of(places))
            time.sleep(0.5)
            wedged_s = time.monotonic()
            os.kill(target, faults.WEDGED)
            time.sleep(WEDGED_S + 1.0)
            answers = streaming.result(60)
    finally:
        end(service)
    for api, names in ((HTTP, ("/livez", "/readyz")), (GRPC, ("health ''",))):
        with measured(11, api) as found:
            for name in (*names, f"health {SERVICES[0]!r}"):
                changes = [is_well for _, is_well in probes.seen[name]]
                assert changes == [True, False, True], (name, probes.seen[name])
            failed_s, again_s = (at - wedged_s for at, _ in probes.seen[names[0]][1:])
            found.note(requests=1)
            found.none(failed=[each for each in answers if each.error])
            found.note(recovery_s=again_s - WEDGED_S)
            found.at_most(2 * PERIOD_S, is_time=False, detection_s=failed_s)


# --- ranks that disagree --------------------------------------------------------------------------

HASHED = """
import hashlib, os, sys
from target_node.runner import Runner
forward, files = Runner.forward, {}
def hashed(self, batch):
    run = self.passes.run
    def watched(token_ids, taps):
        hidden, residuals = run(token_ids, taps)
        digest = hashlib.sha256(batch.encode().tobytes())
        digest.update(hidden.contiguous().numpy().tobytes())
        rank = sys.argv[sys.argv.index("--rank") + 1]
        if rank not in files:
            files[rank] = open(os.path.join(FOLDER, "rank" + rank), "w")
        files[rank].write(digest.hexdigest() + "\\n")
        files[rank].flush()
        return hidden, residuals
    self.passes.run = watched
    try:
        return forward(self, batch)
    finally:
        self.passes.run = run
Runner.forward = hashed
"""


def test_every_rank_computes_the_same_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_service: Callable[..., str]
):
    modules = ("specserve.processes.forkserver", "target_node")
    run_first(monkeypatch, tmp_path, modules, f"FOLDER = {str(tmp_path)!r}\n{HASHED.strip()}")
    flags = ("--topology", "2+0", "--speculation", "sync", "--drafter", "ngram")
    address = start_service(*flags)
    answers = run(ask_all(GRPC, Places(address, ""), seeded(scaled(300))))
    assert [each.message for each in answers if each.error] == []
    first, second = ((tmp_path / f"rank{rank}").read_text().split() for rank in (0, 1))
    with measured(29, GRPC) as found:
        found.note(requests=len(answers), failed=0, rounds=len(first))
        found.at_least(100, rounds=len(first))
        # The last forward may be under way on one of them.
        pairs = list(zip(first, second, strict=False))
        found.none(mismatches=[i for i, (a, b) in enumerate(pairs) if a != b])
        assert abs(len(first) - len(second)) <= 1
