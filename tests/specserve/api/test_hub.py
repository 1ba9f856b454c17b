"""The hub between a real control socket and its readers."""

import asyncio
import time

import pytest

from specserve.api.hub import Hub
from specserve.api.keys import NOBODY
from specserve.errors import Cancelled, Unavailable
from specserve.transport.control.control import TargetControl
from specserve.types import (
    Hello,
    Load,
    Profile,
    Profiled,
    Request,
    RoundEvents,
    SampleDelta,
    SamplingParams,
    TokenOrigin,
)
from tests.specserve.api.scripted_target import ready


def hub_in(folder, buffer_rounds=64):
    return Hub(folder, max_requests=8, max_per_tenant=0, buffer_rounds=buffer_rounds, silence_s=60)


def test_a_reader_that_reads_all_the_time_keeps_up_after_the_loop_was_held_up(tmp_path):
    async def read_all():
        hub, target = hub_in(tmp_path), TargetControl(tmp_path)
        running = asyncio.create_task(hub.run())
        target.announce(ready(400))
        await hub.ready
        opened = hub.admit("r", NOBODY)
        for round_id in range(1000):
            delta = SampleDelta(opened.wire_id, 0, [1], [TokenOrigin.PLAIN])
            target.send(RoundEvents(round_id, [delta]))
        time.sleep(0.2)  # holds the loop up: the frames pile up meanwhile
        async with asyncio.timeout(10):
            for _ in range(1000):
                await opened.next()
        running.cancel()
        await asyncio.wait([running])
        hub.close()
        target.close()

    asyncio.run(read_all())


@pytest.mark.parametrize("error", [Cancelled("aborted"), Unavailable("frames were lost")])
def test_what_ended_while_its_prompt_was_encoded_never_reaches_the_target(error, tmp_path):
    async def submit():
        hub, target = hub_in(tmp_path), TargetControl(tmp_path)
        running = asyncio.create_task(hub.run())
        target.announce(ready(400))
        await hub.ready
        target.receive()  # the greeting
        opened, other = hub.admit("r", NOBODY), hub.admit("other", NOBODY)
        sampling = SamplingParams()
        request = Request(request_id="r", prompt_token_ids=[1, 2], sampling=sampling, seed=0)
        hub.abort("r", NOBODY, error)
        with pytest.raises(type(error)):
            hub.submit(opened, request)
        hub.submit(other, request)  # what comes first is what was sent first
        received = []
        async with asyncio.timeout(10):
            while not received:
                received = [each for each in target.receive() if not isinstance(each, Hello)]
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        hub.close()
        target.close()
        return [message.request.request_id for message in received], other.wire_id

    received, wire_id = asyncio.run(submit())
    assert received == [wire_id]


def test_a_profile_is_given_up_with_the_call_that_asked_for_it(tmp_path):
    async def profile():
        hub, target = hub_in(tmp_path), TargetControl(tmp_path)
        profiling = asyncio.create_task(hub.profile(5, "trace.json"))
        await asyncio.sleep(0)
        profiling.cancel()
        await asyncio.wait([profiling])
        received = []
        async with asyncio.timeout(10):
            while len(received) < 2:
                received += target.receive()
                await asyncio.sleep(0.01)
        hub.begin_drain(30.0)
        with pytest.raises(Unavailable, match="draining"):
            await hub.profile(5, "trace.json")
        hub.close()
        target.close()
        return received

    assert asyncio.run(profile()) == [Profile(5, "trace.json"), Profile(0, "trace.json")]


def test_a_profile_that_finds_no_room_fails_alone(tmp_path, monkeypatch):
    async def profile():
        hub = hub_in(tmp_path)

        def refuse(message):
            raise Unavailable("control: the target does not read")

        monkeypatch.setattr(hub._control, "send", refuse)
        with pytest.raises(Unavailable, match="does not read"):
            await hub.profile(5, "trace.json")
        is_lost = hub.lost.is_set()
        hub.close()
        return is_lost

    assert not asyncio.run(profile())


def test_a_target_may_be_lost_in_the_turn_in_which_it_answers(tmp_path):
    async def profile():
        hub = hub_in(tmp_path)
        profiling = asyncio.create_task(hub.profile(1, "trace.json"))
        await asyncio.sleep(0)
        hub._dispatch(Profiled("trace.json"))
        hub.target_lost("it died")
        hub.close()
        return await profiling

    assert asyncio.run(profile()) == Profiled("trace.json")


def test_a_target_that_is_held_up_survives_clients_that_ask_again_and_again(tmp_path):
    """Each asks, leaves and asks anew, for as long as a round takes too long."""

    async def ask_again():
        hub, target = hub_in(tmp_path), TargetControl(tmp_path)
        running = asyncio.create_task(hub.run())
        target.announce(ready(400))
        await hub.ready
        target.receive()  # the greeting
        refusals: list[str] = []
        for number in range(20_000):
            opened = hub.admit("r", NOBODY)
            try:
                hub.submit(opened, request_of(number))
            except Unavailable as error:
                refusals.append(str(error))
            finally:
                hub.release(opened)
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert set(refusals) == {"the target is held up: 4096 messages wait for it"}
        assert not hub.lost.is_set()
        num_heard = 0
        async with asyncio.timeout(10):
            while num_heard < 2 * (20_000 - len(refusals)):
                num_heard += len(target.receive())
                await asyncio.sleep(0)
            target.send(Load())
            while True:
                opened = hub.admit("r", NOBODY)
                try:
                    hub.submit(opened, request_of(0))
                    break
                except Unavailable:  # what the target has sent is on its way
                    hub.release(opened)
                    await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])
        hub.close()
        target.close()

    asyncio.run(ask_again())


def request_of(number: int) -> Request:
    return Request(
        request_id="r", prompt_token_ids=[number % 400], sampling=SamplingParams(), seed=1
    )
