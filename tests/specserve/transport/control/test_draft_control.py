"""Attaching, context and letting go between the leader and its drafts; real sockets throughout."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib

import msgspec
import numpy as np
import pytest
import zmq

from specserve.transport.control import draft_control
from specserve.transport.control.control import FrameReader, FrameWriter
from specserve.transport.control.draft_control import (
    Attach,
    Attached,
    Context,
    DraftControlDraft,
    DraftControlTarget,
    Free,
    FromDraft,
    SamplingParameters,
    ToDraft,
    Wanted,
    context_arrays,
    feature_bytes,
)
from specserve.transport.link.frames import LinkLimits
from specserve.types import SamplingParams

LIMITS = LinkLimits(
    vocab_size=100, gamma=4, feature_size=3, max_positions=50, max_rows=4, max_kept=8
)
ATTACH = Attach(draft=0, pid=7, drafter="dspark", gamma=4, feature_size=3)
WANTED = Wanted(draft=1, epoch=2, stream=2**63 - 1, start=0)
ATTACHED = Attached(epoch=1, vocab_size=100, max_positions=50, max_rows=4, max_kept=8)
CONTEXT = Context(epoch=1, stream=3, start=4, token_ids=[5, 6], features=bytes(range(24)))
FREE = Free(epoch=1, streams=[1, 2**63 - 1])
SAMPLING = SamplingParams(top_p=0.9, top_k=20, logit_bias={7: -2.5}, stop_token_ids=(4, 5))
FIELDS = SamplingParameters(
    epoch=1, stream=3, num_prompt=9, end_token_ids=(2, 4), sampling=SAMPLING
)
DRAFT_PROGRAM = """
import sys, time
from pathlib import Path
from specserve.transport.control.draft_control import Attach, Attached, DraftControlDraft
control = DraftControlDraft(Path(sys.argv[1]), 0)
epoch = 0
while True:
    if not epoch:
        control.send(Attach(draft=0, pid=0, drafter="x", gamma=1, feature_size=0))
    control.wait(0.02)
    for message in control.receive():
        if isinstance(message, Attached):
            epoch = message.epoch
            control.send(Attach(draft=0, pid=epoch, drafter="x", gamma=1, feature_size=0))
"""


@pytest.fixture
def target(tmp_path):
    target = DraftControlTarget(tmp_path, 2)
    yield target
    target.close()


@pytest.fixture
def draft(tmp_path):
    draft = DraftControlDraft(tmp_path, 0)
    yield draft
    draft.close()


def insist(send, *arguments, seconds=5):
    """Send until it is taken, as a node does for what it still wants."""
    end_s = time.monotonic() + seconds
    while not send(*arguments):
        assert time.monotonic() < end_s
        time.sleep(0.005)


def poll(control, count, seconds=5):
    messages, end_s = [], time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < end_s:
        control.wait(0.05)
        messages += control.receive()
    return messages


def test_messages_arrive_as_they_were_sent_in_both_directions(target, draft):
    for message in (ATTACH, WANTED):
        insist(draft.send, message)
    assert poll(target, 2) == [ATTACH, WANTED]
    for message in (ATTACHED, CONTEXT, FIELDS, FREE):
        insist(target.send, 0, message)
    assert poll(draft, 4) == [ATTACHED, CONTEXT, FIELDS, FREE]
    assert target.num_malformed == draft.num_malformed == 0
    assert target.receive() == draft.receive() == []


def test_one_call_reads_all_that_has_come(target, draft):
    messages, seen = [ATTACHED, CONTEXT, FIELDS, FREE], []
    for _ in range(20):  # they are on their way for a moment
        for message in messages:
            insist(target.send, 0, message)
        time.sleep(0.02)
        seen.append(draft.receive())
        if seen[-1] == messages:
            return
        poll(draft, 3 - len(seen[-1]))
    raise AssertionError(seen)


def test_each_draft_reads_its_own_messages(tmp_path, target, draft):
    second = DraftControlDraft(tmp_path, 1)
    insist(target.send, 1, ATTACHED)
    insist(target.send, 0, FREE)
    assert poll(second, 1) == [ATTACHED]
    assert poll(draft, 1) == [FREE]
    second.close()


def test_nothing_is_kept_for_a_draft_that_is_not_there(tmp_path, target):
    for _ in range(3):
        assert not target.send(0, ATTACHED)
    assert target.num_dropped == 3
    late = DraftControlDraft(tmp_path, 0)
    insist(target.send, 0, FREE)
    assert poll(late, 1) == [FREE]
    late.close()


def test_nothing_is_kept_for_a_target_that_is_not_there(tmp_path, draft):
    assert not draft.send(ATTACH)
    assert draft.num_dropped == 1
    late = DraftControlTarget(tmp_path, 1)
    insist(draft.send, ATTACH)
    assert poll(late, 1) == [ATTACH]
    late.close()


@pytest.mark.slow
def test_a_draft_that_does_not_read_costs_frames_and_no_time(target, draft):
    insist(target.send, 0, ATTACHED)
    big = msgspec.structs.replace(CONTEXT, features=bytes(2**20))
    start_s = time.monotonic()
    taken = [target.send(0, big) for _ in range(600)]
    assert time.monotonic() - start_s < 5
    assert taken.count(False) > 300
    assert target.num_dropped >= taken.count(False)
    messages = poll(draft, 1 + taken.count(True))
    assert messages == [ATTACHED] + [big] * taken.count(True)
    insist(target.send, 0, FREE)
    assert poll(draft, 1) == [FREE]


def test_a_message_beyond_the_limit_is_dropped_where_it_is_made(target, draft):
    insist(target.send, 0, ATTACHED)
    huge = msgspec.structs.replace(CONTEXT, features=bytes(draft_control.MAX_FRAME_BYTES))
    assert not target.send(0, huge)
    insist(target.send, 0, FREE)
    assert poll(draft, 2) == [ATTACHED, FREE]


@pytest.mark.slow
def test_a_killed_draft_is_replaced_under_the_same_path(tmp_path, target):
    for epoch in (1, 2, 3):
        process = subprocess.Popen([sys.executable, "-c", DRAFT_PROGRAM, str(tmp_path)])
        try:
            answered = False
            end_s = time.monotonic() + 20
            while not answered and time.monotonic() < end_s:
                for message in poll(target, 1):
                    answered = answered or message.pid == epoch
                    if message.pid == 0:
                        target.send(0, msgspec.structs.replace(ATTACHED, epoch=epoch))
            assert answered
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        while target.receive():
            pass


def test_a_restarted_target_is_found_again(tmp_path, draft):
    for _ in range(2):
        target = DraftControlTarget(tmp_path, 1)
        end_s, messages = time.monotonic() + 10, []
        while ATTACH not in messages and time.monotonic() < end_s:
            draft.send(ATTACH)
            messages = poll(target, 1, 0.1)
        assert ATTACH in messages
        target.close()


def test_wait_is_over_when_something_arrives_or_the_time_has_passed(target, draft):
    assert not draft.wait(0)
    start_s = time.monotonic()
    assert not draft.wait(0.1)
    assert time.monotonic() - start_s >= 0.09
    insist(target.send, 0, FREE)
    assert draft.wait(5)
    assert draft.receive() == [FREE]


def test_drafts_that_do_not_exist_are_malformed(target, draft):
    insist(draft.send, msgspec.structs.replace(ATTACH, draft=2))
    insist(draft.send, ATTACH)
    assert poll(target, 1) == [ATTACH]
    assert target.num_malformed == 1


def intruder(folder, name):
    socket = zmq.Context.instance().socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(f"ipc://{folder / name}")
    return socket


def garbage(count):
    """Random bytes, and frames of the right checksum that hold something else."""
    source = random.Random(3)
    payloads = [b"", b"\x81", b"\xdf\xff\xff\xff\xff", b"\x81\xa4type\xa4free"]
    for index in range(count):
        if index % 2:
            yield source.randbytes(source.randint(0, 200))
        else:
            body = struct.pack("<QQ", 1, index) + payloads[index // 2 % len(payloads)]
            yield struct.pack("<I", zlib.crc32(body)) + body


@pytest.mark.parametrize("name", ["from_drafts", "to_draft_0"])
def test_garbage_is_counted_and_dropped(tmp_path, target, draft, name):
    socket = intruder(tmp_path, name)
    reader = target if name == "from_drafts" else draft
    for frame in garbage(1000):
        socket.send(frame)
    end_s = time.monotonic() + 10
    while reader.num_malformed < 1000 and time.monotonic() < end_s:
        reader.wait(0.05)
        assert reader.receive() == []
    assert reader.num_malformed == 1000
    insist(draft.send, ATTACH)
    insist(target.send, 0, FREE)
    assert poll(target, 1) == [ATTACH]
    assert poll(draft, 1) == [FREE]
    socket.close()


def test_one_call_does_not_follow_a_flood(tmp_path, target):
    socket = intruder(tmp_path, "from_drafts")
    for frame in garbage(500):
        socket.send(frame)
    target.wait(5)
    target.receive()
    assert 0 < target.num_malformed <= draft_control.HIGH_WATER_FRAMES
    socket.close()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (msgspec.structs.replace(ATTACH, draft=-1), FromDraft),
        (msgspec.structs.replace(ATTACH, gamma=2**31), FromDraft),
        (msgspec.structs.replace(ATTACH, drafter="x" * 65), FromDraft),
        (msgspec.structs.replace(WANTED, start=-1), FromDraft),
        (msgspec.structs.replace(WANTED, stream=2**63), FromDraft),
        (msgspec.structs.replace(WANTED, epoch=0), FromDraft),
        (msgspec.structs.replace(ATTACHED, epoch=2**32), ToDraft),
        (msgspec.structs.replace(CONTEXT, token_ids=[5, -1]), ToDraft),
        (msgspec.structs.replace(CONTEXT, start=0.5), ToDraft),
        (msgspec.structs.replace(FREE, streams=[-1]), ToDraft),
        (msgspec.structs.replace(FIELDS, num_prompt=-1), ToDraft),
        (msgspec.structs.replace(FIELDS, end_token_ids=(-1,)), ToDraft),
        (FIELDS, FromDraft),
        (ATTACH, ToDraft),
        (FREE, FromDraft),
    ],
    ids=str,
)
def test_a_field_out_of_range_is_malformed(message, kind):
    reader = FrameReader(msgspec.msgpack.Decoder(kind))
    assert reader.open(FrameWriter().seal(message)) is None
    assert reader.num_malformed == 1


def test_no_flipped_bit_goes_unnoticed():
    reader = FrameReader(msgspec.msgpack.Decoder(ToDraft))
    frame = FrameWriter().seal(CONTEXT)
    assert reader.open(frame).message == CONTEXT
    for bit in range(len(frame) * 8):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert reader.open(bytes(flipped)) is None


def test_context_unpacks_to_arrays_of_ones_own():
    features = np.arange(6, dtype=np.float32).reshape(2, 3)
    context = msgspec.structs.replace(CONTEXT, features=feature_bytes(features[::-1]))
    token_ids, unpacked = context_arrays(context, LIMITS)
    assert token_ids.tolist() == [5, 6]
    assert token_ids.dtype == np.int32
    assert (unpacked == features[::-1]).all()
    assert unpacked.dtype == np.float32
    assert token_ids.flags.writeable
    assert unpacked.flags.writeable


def test_context_for_a_drafter_without_features_has_no_columns():
    context = msgspec.structs.replace(CONTEXT, features=b"")
    narrow = LinkLimits(
        vocab_size=100, gamma=4, feature_size=0, max_positions=50, max_rows=4, max_kept=8
    )
    assert context_arrays(context, narrow)[1].shape == (2, 0)
    assert context_arrays(CONTEXT, narrow) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"features": bytes(23)},
        {"features": bytes(25)},
        {"features": b""},
        {"token_ids": [5]},
        {"token_ids": [5, 100]},
        {"token_ids": []},
        {"start": 49},
        {"start": 2**31 - 1},
    ],
    ids=str,
)
def test_context_that_does_not_fit_is_nothing(fields):
    assert context_arrays(CONTEXT, LIMITS) is not None
    assert context_arrays(msgspec.structs.replace(CONTEXT, **fields), LIMITS) is None


def test_sockets_are_files_in_the_folder(tmp_path, target, draft):
    assert sorted(os.listdir(tmp_path)) == ["from_drafts", "to_draft_0"]
