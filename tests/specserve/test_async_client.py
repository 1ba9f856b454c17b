"""The Python client for asyncio, over a real connection."""

import asyncio

import pytest

from specserve.client import AsyncClient
from specserve.errors import Cancelled, InvalidField
from specserve.types import Abort
from tests.specserve.api.conftest import (  # noqa: F401 - fixtures
    make_rig,
    model_folder,
    rig,
    shared_rig,
)


def test_the_async_client_does_the_same(rig):  # noqa: F811
    async def use():
        async with AsyncClient(rig.address) as client:
            stream = client.stream("fox")
            text = "".join([delta.text async for delta in stream])
            whole = await client.generate("fox", n=2)
            many = await asyncio.gather(*(client.generate("fox") for _ in range(20)))
            with pytest.raises(InvalidField):
                await client.generate("fox", n=0)
            with pytest.raises(InvalidField):
                async for _ in client.stream("fox", n=0):
                    pass
            await client.abort("unknown")
            info, load = await client.server_info(), await client.load()
            model = await client.model_info()
            assert (info.state, load.draining, model.model) == ("ready", False, "scripted")
            assert text == whole.text == rig.text
            assert {done.text for done in many} == {rig.text}
            assert stream.finished.usage.num_generated_tokens == len(rig.script_ids)

    rig.call(use())


def test_the_async_client_tells_a_cancelled_call_from_a_cancelled_task(rig):  # noqa: F811
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005

    async def read(client: AsyncClient, then) -> None:
        stream = client.stream("fox", max_tokens=400)
        async for _ in stream:
            await then(client, stream)

    async def cancel(client, stream):
        stream.cancel()

    async def close(client, stream):
        await client.close()

    async def wait(client, stream):
        await asyncio.sleep(10)

    async def use():
        for then in (cancel, close):
            with pytest.raises(Cancelled):
                await read(AsyncClient(rig.address), then)
        closing = AsyncClient(rig.address)
        asyncio.get_running_loop().call_later(0.1, asyncio.ensure_future, closing.close())
        with pytest.raises(Cancelled):
            await closing.generate("fox", max_tokens=400)
        async with AsyncClient(rig.address) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(client, wait), 0.1)
            task = asyncio.ensure_future(client.generate("fox", max_tokens=400))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.__cause__ is not caught.value

    rig.call(use())


def test_the_async_client_aborts_what_is_left_early(rig):  # noqa: F811
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005

    async def use():
        async with AsyncClient(rig.address) as client:
            stream = client.stream("fox", max_tokens=400)
            async for _ in stream:
                break
            stream.cancel()
            await asyncio.sleep(0.1)

    rig.call(use())
    rig.until(lambda: rig.target.received(Abort))
