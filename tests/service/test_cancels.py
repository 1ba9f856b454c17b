"""Random cancels and disconnects against a real service leak neither blocks nor rows."""

import asyncio
import contextlib
import random
import time

import grpc
import grpc.aio
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.client import AsyncClient, Client
from tests.reliability.apis import GRPC, HTTP, Places, ask, places_of
from tests.reliability.loop import run
from tests.reliability.measured import measured
from tests.reliability.scale import scaled
from tests.service.chaos import end
from tests.service.launched import Launched

NUM_REQUESTS = scaled(10_000)
NUM_WORKERS = 24


async def _worker(address: str, rng: random.Random, count: int) -> int:
    """Start and abandon `count` requests; returns how many had begun to answer."""
    answered = 0
    channel = grpc.aio.insecure_channel(address)
    for _ in range(count):
        stub = stubs.GenerationStub(channel)
        request = pb.GenerateRequest(
            text="abc def " * rng.randrange(1, 30),
            sampling=pb.SamplingParams(max_tokens=500, ignore_eos=True, n=rng.choice([1, 1, 2])),
        )
        call = stub.GenerateStream(request)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            for _ in range(rng.choice([0, 0, 1, 2, 4])):
                answered += await call.read() is not grpc.aio.EOF
        if rng.random() < 0.1:
            await channel.close()  # a disconnect, not a polite cancel
            channel = grpc.aio.insecure_channel(address)
        else:
            call.cancel()
    await channel.close()
    return answered


async def _http_worker(places: Places, rng: random.Random, count: int) -> int:
    """The same over HTTP, where leaving is a closed connection."""
    answered = 0
    for _ in range(count):
        options = {"max_tokens": 500, "ignore_eos": True}
        num_pieces = rng.choice([0, 0, 1, 2, 4])
        asking = ask(
            HTTP, places, "abc def " * rng.randrange(1, 30),
            on_piece=lambda answer, most=num_pieces: len(answer.piece_s) < most, **options,
        )  # fmt: skip
        if num_pieces:
            answered += len((await asking).piece_s)
            continue
        with contextlib.suppress(TimeoutError):  # whatever it is doing by then
            await asyncio.wait_for(asking, rng.uniform(0.001, 0.02))
    return answered


async def _abandon(places: Places) -> dict[str, int]:
    """How many pieces came over each API, each with half of the requests."""
    share = NUM_REQUESTS // NUM_WORKERS + 1
    sources = [random.Random(i) for i in range(NUM_WORKERS)]
    half = NUM_WORKERS // 2
    workers = [_worker(places.grpc, rng, share) for rng in sources[:half]]
    workers += [_http_worker(places, rng, share) for rng in sources[half:]]
    answered = await asyncio.gather(*workers)
    return {GRPC: sum(answered[:half]), HTTP: sum(answered[half:])}


async def _idle_load(address: str):
    async with AsyncClient(address) as client:
        deadline = time.monotonic() + 30
        while True:
            load = await client.load()
            if load.num_running == load.num_waiting == 0 or time.monotonic() > deadline:
                return load
            await asyncio.sleep(0.3)


@pytest.mark.slow
def test_random_cancels_and_disconnects_leak_nothing():
    """Neither blocks nor rows of the target, nor places at the draft process: it still drafts."""
    pair = ("--topology", "1+1", "--speculation", "async", "--drafter", "ngram")
    service = Launched(*pair, "--oversubscribe", "--set", "speculation.miss_policy=skip")
    try:
        places = places_of(service)
        answered = run(_abandon(places))
        load = run(_idle_load(places.grpc))
        with Client(places.grpc) as client:
            before = client.spec_stats().num_hits
            client.generate("1, 2, 1, 2,", max_tokens=200, temperature=0, ignore_eos=True)
            num_hits = client.spec_stats().num_hits - before
    finally:
        end(service)
    for api, num_answered in answered.items():
        with measured(15, api) as found:
            found.note(requests=NUM_REQUESTS // 2, failed=0, answered=num_answered)
            found.at_least(NUM_REQUESTS // 8, answered=num_answered)
            found.at_most(0, is_time=False, rows_held=load.num_running + load.num_waiting)
            found.at_most(0, is_time=False, blocks_held=load.num_blocks - load.num_free_blocks)
            found.at_least(1, hits_afterwards=num_hits)


@pytest.mark.slow
def test_a_load_that_is_asked_for_after_an_answer_has_counted_it(service: str):
    with Client(service) as client:
        for _ in range(20):
            before = client.load().num_generated_tokens
            client.generate("a", max_tokens=20, ignore_eos=True)
            load = client.load()
            assert load.num_generated_tokens == before + 20
            assert load.num_running == 0
            assert load.report_age_s < 0.2
