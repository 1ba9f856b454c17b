"""Health of the drafts when the process that tells of it is held up."""

import asyncio
import time

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api.health import DRAFT, Health
from specserve.api.hub import Hub
from specserve.transport.control.control import TargetControl
from specserve.types import Load
from tests.specserve.api.scripted_target import ready

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("held_up", [True, False])
@pytest.mark.parametrize("attached", [(1, 2), (1, 1, 2), (1,), (1, 2, 1), (2, 1, 2, 2, 1)])
def test_a_watcher_sees_every_change_however_reports_arrive(tmp_path, attached, held_up):
    """Of two draft processes; those in a row that say the same are told of once."""
    seen: list[int] = []
    states = [SERVING if number == 2 else NOT_SERVING for number in (2, *attached)]
    changes = [now for before, now in zip([None, *states], states, strict=False) if now != before]

    async def follow():
        hub = Hub(tmp_path, max_requests=8, max_per_tenant=0, buffer_rounds=64, silence_s=60)
        target, health, server = TargetControl(tmp_path), Health(()), grpc.aio.server()
        health.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        tasks = [
            asyncio.create_task(each)
            for each in (hub.run(), health.follow_drafts(hub, 2), watch(port))
        ]
        target.announce(ready(400))
        await hub.ready
        target.send(Load(num_draft_processes=2, num_drafts_attached=2))
        await seen_so_far(1)
        for num_attached in attached:
            target.send(Load(num_draft_processes=2, num_drafts_attached=num_attached))
            await asyncio.sleep(0 if held_up else 0.02)
        if held_up:
            time.sleep(0.1)  # they pile up meanwhile
        await seen_so_far(len(changes))
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await server.stop(0)
        hub.close()
        target.close()

    async def watch(port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            checks = health_pb2_grpc.HealthStub(channel)
            async for answer in checks.Watch(health_pb2.HealthCheckRequest(service=DRAFT)):
                if seen or answer.status == SERVING:  # from there on
                    seen.append(answer.status)

    async def seen_so_far(count):
        ends_s = time.monotonic() + 10
        while len(seen) < count and time.monotonic() < ends_s:
            await asyncio.sleep(0.001)

    asyncio.run(follow())
    assert seen == changes
