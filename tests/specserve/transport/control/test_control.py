"""Frames, loss and garbage on the control plane; real sockets throughout."""

import asyncio
import os
import pickle
import random
import struct
import time
import zlib
from pathlib import Path

import msgspec
import pytest
import zmq

from specserve.errors import Unavailable
from specserve.transport.control import control
from specserve.transport.control.control import ApiControl, FrameReader, FrameWriter, TargetControl
from specserve.types import (
    Abort,
    FromTarget,
    Hello,
    Load,
    Profiled,
    Ready,
    Request,
    RoundEvents,
    SampleDelta,
    SamplingParams,
    Submit,
    TokenOrigin,
    ToTarget,
)

ROUND = RoundEvents(7, [SampleDelta("r", 0, [1, 2], [TokenOrigin.PLAIN, TokenOrigin.BONUS])])
SUBMIT = Submit(
    Request(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(logit_bias={5: 1.5}, stop=("x",)),
        seed=2**64 - 1,
    )
)
READY = Ready(
    model="m", model_type="qwen3", vocab_size=8, max_model_len=8, num_layers=1, num_params=1,
    ballast_params=0, dtype="float32", half_weights=True, kv_dtype="bfloat16", device="cpu",
    tensor_parallel=1, oversubscribed=False,
    deterministic=True, cuda_graphs=False, backend="torch", block_size=1,
    num_blocks=1, max_batch_rows=1,
    max_batch_tokens=1, eos_token_ids=(0,),
)  # fmt: skip


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.fixture
def target(tmp_path):
    target = TargetControl(tmp_path)
    yield target
    target.close()


def with_api(folder, use):
    async def run():
        api = ApiControl(folder)
        try:
            return await asyncio.wait_for(use(api), 10)
        finally:
            api.close()

    return asyncio.run(run())


def intruder(folder, name):
    socket = zmq.Context.instance().socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(f"ipc://{folder / name}")
    return socket


def garbage(count, canary):
    """Random bytes, and frames of the right checksum that hold something else."""
    source = random.Random(3)
    payloads = [pickle.dumps(Canary(str(canary))), b"", b"\x81", b"\xdf\xff\xff\xff\xff"]
    for index in range(count):
        if index % 10:
            yield source.randbytes(source.randint(0, 200))
        else:
            body = struct.pack("<QQ", 1, index) + payloads[index // 10 % len(payloads)]
            yield struct.pack("<I", zlib.crc32(body)) + body
    yield pickle.dumps(Canary(str(canary)))


def poll(target, count, seconds=5):
    messages, end_s = [], time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < end_s:
        target.wait(0.1)
        messages += target.receive()
    return messages


def test_an_alarm_ends_a_wait(target):
    heard, rung = os.pipe()
    try:
        assert not target.wait(0.02, heard)
        os.write(rung, b"!")
        began_s = time.monotonic()
        assert target.wait(5, heard)
        assert time.monotonic() - began_s < 1
        assert target.receive() == []
    finally:
        os.close(heard)
        os.close(rung)


def test_messages_arrive_as_they_were_sent_in_both_directions(tmp_path, target):
    async def use(api):
        api.send(SUBMIT)
        assert poll(target, 1) == [SUBMIT]
        target.send(ROUND)
        received = await api.receive()
        assert (received.message, received.lost) == (ROUND, False)

    with_api(tmp_path, use)


@pytest.mark.parametrize("api_first", [True, False])
def test_hello_is_answered_whoever_starts_first(tmp_path, api_first):
    async def use(api):
        if api_first:
            api.send(Hello())
            await asyncio.sleep(0.05)
        target = TargetControl(tmp_path)
        try:
            target.announce(READY)
            assert (await api.receive()).message == READY
            if not api_first:
                api.send(Hello())
            target.wait(1)
            assert target.receive() == []  # answered, not passed on
            assert (await api.receive()).message == READY
        finally:
            target.close()

    with_api(tmp_path, use)


def test_ten_thousand_garbage_frames_to_the_target_do_no_harm(tmp_path, target):
    canary = tmp_path / "canary"
    socket = intruder(tmp_path, "to_target")
    for frame in garbage(10_000, canary):
        socket.send(frame)
        if socket.get(zmq.EVENTS) & zmq.POLLOUT == 0:
            assert target.receive() == []
    socket.close()

    async def use(api):
        api.send(SUBMIT)
        assert poll(target, 1) == [SUBMIT]

    with_api(tmp_path, use)
    end_s = time.monotonic() + 5
    while target.num_malformed < 10_001 and time.monotonic() < end_s:
        target.wait(0.1)
        assert target.receive() == []
    assert target.num_malformed == 10_001
    assert not canary.exists()


@pytest.mark.slow
def test_ten_thousand_garbage_frames_to_the_api_do_no_harm(tmp_path, target):
    canary = tmp_path / "canary"

    async def use(api):
        target.send(ROUND)
        assert (await api.receive()).message == ROUND
        socket = intruder(tmp_path, "from_target")
        frames = iter(garbage(10_000, canary))
        receiving = asyncio.create_task(api.receive())
        for frame in frames:
            socket.send(frame)
            await asyncio.sleep(0)
        while api.num_malformed < 10_001:
            await asyncio.sleep(0.01)
        target.send(ROUND)
        received = await receiving
        assert (received.message, received.lost) == (ROUND, False)
        socket.close()

    with_api(tmp_path, use)
    assert not canary.exists()


def test_every_flipped_bit_of_a_frame_is_noticed():
    frame = FrameWriter().seal(ROUND)
    for index in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[index // 8] ^= 1 << index % 8
        reader = FrameReader(msgspec.msgpack.Decoder(FromTarget))
        assert reader.open(bytes(damaged)) is None
    assert FrameReader(msgspec.msgpack.Decoder(FromTarget)).open(frame).message == ROUND


def test_a_missing_frame_and_a_new_sender_are_noticed():
    reader, writer = FrameReader(msgspec.msgpack.Decoder(ToTarget)), FrameWriter()
    frames = [writer.seal(Abort(str(index))) for index in range(4)]
    lost = [reader.open(frames[index]).lost for index in (0, 1, 3)]
    assert lost == [False, False, True]
    assert reader.open(FrameWriter().seal(Abort("x"))).lost


def test_the_target_never_waits_for_a_reader_and_the_gap_shows(tmp_path, target, monkeypatch):
    monkeypatch.setattr(control, "HIGH_WATER_FRAMES", 10)
    small = TargetControl(tmp_path / "small") if (tmp_path / "small").mkdir() is None else None
    slowest_s = 0.0
    for _ in range(100):
        start_s = time.monotonic()
        small.send(ROUND)
        slowest_s = max(slowest_s, time.monotonic() - start_s)
    assert slowest_s < 0.05
    assert small.num_dropped == 90
    assert not small.send(Load())  # stale by the next one, so it is no loss
    assert small.num_dropped == 90

    async def use(api):
        for _ in range(10):
            assert not (await api.receive()).lost
        small.send(Profiled("x"))
        assert (await api.receive()).lost

    with_api(tmp_path / "small", use)
    small.close()


def test_an_api_whose_target_does_not_read_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "HIGH_WATER_FRAMES", 10)

    async def use(api):
        for _ in range(10):
            api.send(Hello())
        with pytest.raises(Unavailable, match="does not read"):
            api.send(Hello())

    with_api(tmp_path, use)


def test_a_closed_target_is_noticed_at_once(tmp_path):
    async def use(api):
        target = TargetControl(tmp_path)
        api.send(Hello())
        await asyncio.to_thread(target.wait, 1)
        start_s = time.monotonic()
        target.close()
        await api.target_lost()
        assert time.monotonic() - start_s < 0.5

    with_api(tmp_path, use)


def test_a_folder_too_deep_for_a_socket_is_one_clear_error(tmp_path):
    with pytest.raises(Unavailable, match="limit 100 bytes"):
        TargetControl(tmp_path / ("x" * 120))


def test_the_leaders_messages_are_carried_on_the_cores_it_is_told(tmp_path):
    core, before = min(os.sched_getaffinity(0)), set(os.listdir("/proc/self/task"))
    target = TargetControl(tmp_path, cores=(core,))
    try:
        deadline_s = time.monotonic() + 5  # a thread names and ties itself
        while _carriers(before) != [{core}] and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert _carriers(before) == [{core}]
    finally:
        target.close()


@pytest.mark.parametrize("cores", [(4095,), (99_999,)])
def test_cores_that_are_not_to_be_had_end_nothing(tmp_path, cores):
    """zmq ends the process for them."""
    own, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    target = TargetControl(tmp_path, cores=cores)
    try:
        target.wait(0)
        assert os.sched_getaffinity(0) == own
        assert all(found == own for found in _carriers(before))
    finally:
        target.close()


def _carriers(before: set[str]) -> list[set[int]]:
    """Cores of each thread that carries messages and has started since."""
    tasks = [
        Path("/proc/self/task", task)
        for task in os.listdir("/proc/self/task")
        if task not in before
    ]
    names = {task.name: (task / "comm").read_text() for task in tasks}
    return [os.sched_getaffinity(int(t)) for t, name in names.items() if "ZMQbg/IO" in name]


def test_a_frame_larger_than_its_reader_expects_is_not_even_looked_at():
    frame = FrameWriter().seal(ROUND)
    decoder = msgspec.msgpack.Decoder(FromTarget)
    assert FrameReader(decoder, len(frame)).open(frame) is not None
    reader = FrameReader(decoder, len(frame) - 1)
    assert reader.open(frame) is None
    assert reader.num_malformed == 1


def test_a_stranger_writes_no_lines_of_its_own_into_the_log(caplog):
    frame = FrameWriter().seal({"type": "x\n00:00:00.000 E target 0: all is lost"})
    assert FrameReader(msgspec.msgpack.Decoder(FromTarget)).open(frame) is None
    (record,) = caplog.records
    assert "all is lost" in record.getMessage()
    assert "\n" not in record.getMessage()
