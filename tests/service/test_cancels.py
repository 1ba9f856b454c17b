"""Random cancels and disconnects against a real service leak neither blocks nor rows."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.client import AsyncClient, Client

NUM_REQUESTS = 10_000
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


async def _abandon(address: str) -> int:
    share = NUM_REQUESTS // NUM_WORKERS + 1
    workers = (_worker(address, random.Random(i), share) for i in range(NUM_WORKERS))
    return sum(await asyncio.gather(*workers))


async def _idle_load(address: str):
    async with AsyncClient(address) as client:
        deadline = time.monotonic() + 30
        while True:
            load = await client.load()
            if load.num_running == load.num_waiting == 0 or time.monotonic() > deadline:
                return load
            await asyncio.sleep(0.3)


@pytest.mark.slow
def test_ten_thousand_cancels_and_disconnects_leak_no_block(start_service: Callable[..., str]):
    address = start_service()
    answered = asyncio.run(_abandon(address))
    assert answered > NUM_REQUESTS // 4
    load = asyncio.run(_idle_load(address))
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert load.num_free_blocks == load.num_blocks


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
