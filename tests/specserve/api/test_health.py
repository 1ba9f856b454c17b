"""Health of the drafts when the process that tells of it is held up."""

import asyncio
import time
from unittest import mock

import pytest
from grpc_health.v1 import health_pb2

from specserve.api.health import DRAFT, Health
from specserve.api.hub import Hub
from specserve.types import Load
from specserve.wire.control import TargetControl
from tests.specserve.api.scripted_target import ready

Statuses = health_pb2.HealthCheckResponse


@pytest.mark.parametrize("attached", [(2, 1), (1, 2), (2, 1, 2), (2, 2, 1)])
def test_the_last_of_reports_that_come_together_is_what_is_told(tmp_path, attached):
    async def follow():
        hub = Hub(tmp_path, max_requests=8, buffer_rounds=64, silence_s=60)
        target, health = TargetControl(tmp_path), Health(())
        told = mock.AsyncMock()
        tasks = [asyncio.create_task(hub.run())]
        with mock.patch.object(health._servicer, "set", told):
            tasks.append(asyncio.create_task(health.follow_drafts(hub, 2)))
            target.announce(ready(400))
            await hub.ready
            for num_attached in attached:
                target.send(Load(num_draft_processes=2, num_drafts_attached=num_attached))
            time.sleep(0.1)  # holds the loop up: they pile up meanwhile
            expected = Statuses.SERVING if attached[-1] == 2 else Statuses.NOT_SERVING
            async with asyncio.timeout(10):
                while hub.load.num_draft_processes == 0 or told.call_args.args != (DRAFT, expected):
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)  # and nothing else is told afterwards
            assert told.call_args.args == (DRAFT, expected)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        hub.close()
        target.close()

    asyncio.run(follow())
