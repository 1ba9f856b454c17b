"""What requests may do to a service: time out, stop reading, ask for more than there is.

Rows 16, 17 and 19 of tests/reliability/rows.py; row 15 is tests/service/test_cancels.py.
"""

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.client import Client
from tests.reliability.apis import GRPC, HTTP, Answer, Places, apis, ask, open_http, places_of
from tests.reliability.loop import run
from tests.reliability.measured import measured
from tests.reliability.overload import FACTOR, overload, overloaded_service
from tests.reliability.scale import is_long, scaled
from tests.reliability.streams import quantile
from tests.service.chaos import end
from tests.service.draft_watch import eventually
from tests.service.launched import Launched

LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0.0}
# So few KV blocks that all have been written to before memory is looked at.
MODEL = ("smollm2", "160MiB") if is_long() else ("tiny", "24MiB")
RSS_GROWTH_MB = 32.0
LATE = 0.99 if is_long() else 0.9  # of what takes long, how much is held against a bar
LATE_OF_FEW = 0.99 if is_long() else 0.5  # of few that come at once, the last ones are chance
WAY_S = 0.02  # to and from a service, beside a client and a model on two cores

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crowded() -> Iterator[Launched]:
    """Few places and fewer rows, so that requests wait and are refused."""
    service = overloaded_service("--target", MODEL[0], "--kv-memory", MODEL[1])
    try:
        yield service
    finally:
        end(service)


def is_idle(places: Places) -> bool:
    """Whether nothing is held for anybody."""
    with Client(places.grpc) as client:
        load = client.load()
    return load.num_running == load.num_waiting == 0 and load.num_free_blocks == load.num_blocks


async def hurried(api: str, places: Places, count: int) -> list[tuple[float, Answer]]:
    """Requests that cannot be answered in the time they have, with that time."""
    source, gate = random.Random(3), asyncio.Semaphore(24)

    async def one(timeout_s: float) -> tuple[float, Answer]:
        async with gate:
            return timeout_s, await ask(api, places, "import", timeout_s=timeout_s, **LONG)

    return await asyncio.gather(*(one(source.uniform(0.001, 0.5)) for _ in range(count)))


@pytest.mark.parametrize("api", apis(HTTP))
def test_a_deadline_ends_a_request_that_waits_or_runs_and_frees_it(crowded: Launched, api: str):
    places = places_of(crowded)
    ended = run(hurried(api, places, scaled(1000)))
    with Client(places.grpc) as client:
        round_s = client.load().round_s
    with measured(16, api) as found:
        found.note(requests=len(ended), round_s=round_s)
        found.none(wrong=[a for _, a in ended if a.error != "DEADLINE_EXCEEDED"])
        num_running = sum(bool(answer.piece_s) for _, answer in ended)
        assert 0 < num_running < len(ended), "some wait and some run"
        over_s = [answer.ended_s - answer.sent_s - timeout_s for timeout_s, answer in ended]
        found.at_most(round_s + WAY_S, overrun_p99_s=quantile(over_s, LATE))
        found.none(held=[] if eventually(lambda: is_idle(places), 3) else ["something"])


@pytest.mark.parametrize("api", apis(HTTP))
def test_ten_times_too_many_are_refused_at_once_and_the_rest_served(crowded: Launched, api: str):
    found = overload(api, crowded, seconds=30.0 if is_long() else 2.0, max_tokens=32)
    with measured(17, api) as kept:
        assert set(found.errors) == {"", "RESOURCE_EXHAUSTED"}, found.errors
        kept.note(requests=sum(found.errors.values()), failed=0, refused=len(found.refused_s))
        kept.note(before=found.peak, during=found.goodput, sent_per_s=found.sent_per_s)
        kept.note(retry_after_max_s=max(found.waits_s))
        kept.none(refused_without_retry_after=[None] * found.without_wait)
        assert len(found.refused_s) > 0.5 * found.sent_per_s  # it was an overload
        assert found.sent_per_s > 0.5 * FACTOR * found.peak / 32
        kept.at_most(0.05, refused_p99_s=quantile(found.refused_s, LATE_OF_FEW))
        kept.at_least(0.9, share_of_peak=found.goodput / found.peak)
        for name, (before, after) in found.memory_mb.items():
            kept.at_most(RSS_GROWTH_MB, is_time=False, **{f"{name}_mb": after - before})


# --- readers that do not read ---------------------------------------------------------------------

READERS = 6


@asynccontextmanager
async def unread(api: str, places: Places, num: int):
    """So many streams whose client has stopped reading after the first tokens."""
    kept = []
    async with AsyncExitStack() as stack:
        for _ in range(num):
            if api == GRPC:
                small = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
                channel = grpc.aio.insecure_channel(places.grpc, options=small)
                await stack.enter_async_context(channel)
                asked = pb.GenerateRequest(text="import", sampling=pb.SamplingParams(**LONG))
                call = stubs.GenerationStub(channel).GenerateStream(asked)
                await call.read()
                stack.callback(call.cancel)
            else:
                body = {"prompt": "import", "stream": True, **LONG}
                streams = await open_http(places, "POST", "/v1/completions", body)
                kept.append(streams)  # who is collected closes
                sock = streams[1].get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                streams[1].transport.pause_reading()
                stack.callback(streams[1].transport.abort)
        yield


async def gaps_beside(api: str, places: Places, others) -> list[float]:
    """Of keen readers, while `others` are there."""
    async with others:
        keen = [ask(api, places, "def", **LONG | {"max_tokens": 100}) for _ in range(2)]
        answers = await asyncio.gather(*keen)
    assert [answer.message for answer in answers if answer.error] == []
    return [gap for answer in answers for gap in answer.gaps_s]


@asynccontextmanager
async def reading(api: str, places: Places, num: int):
    """The same streams, read."""
    tasks = [asyncio.create_task(ask(api, places, "import", **LONG)) for _ in range(num)]
    await asyncio.sleep(0.1)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("api", apis(HTTP))
def test_who_does_not_read_holds_nobody_up(crowded: Launched, api: str):
    places = places_of(crowded)
    beside_readers, beside_sleepers = [], []
    for _ in range(scaled(10)):
        for others, gaps in ((reading, beside_readers), (unread, beside_sleepers)):
            gaps += run(gaps_beside(api, places, others(api, places, READERS)))
            assert eventually(lambda: is_idle(places), 10)
    with measured(19, api) as found:
        found.note(requests=4 * scaled(10), failed=0)
        typical = quantile(beside_readers, LATE_OF_FEW)
        beside = quantile(beside_sleepers, LATE_OF_FEW)
        found.note(gap_p99_s=beside, gap_p99_beside_readers_s=typical)
        found.at_most(1.1, others_p99=beside / typical)
