"""Headers and payloads over a lane that the test plays: what is skipped, what drops, what ends."""

import os
import random
import struct
import zlib
from collections import deque

import pytest
import torch

from specserve.transport.group_link.device_part import joined
from specserve.transport.group_link.lanes import MAX_ENTRIES, MAX_LANDED, MAX_MOVING
from specserve.transport.group_link.transit import MAX_WAITING, Receiver, Sender
from specserve.transport.link.ring import SharedRegion

SOURCE = random.Random(1)
# What the host reads, and what only a device does: entries of four bytes, of two tensors.
FRAMES = [
    (SOURCE.randbytes(30 + number), torch.tensor([SOURCE.getrandbits(31) for _ in range(9)]).int())
    for number in range(200)
]


class PlayedTransfer:
    began_s = 0.0  # long ago

    def __init__(self, entries: torch.Tensor) -> None:
        self.entries = entries
        self.has_arrived = False
        self.error: Exception | None = None

    def is_done(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.has_arrived

    def take(self) -> torch.Tensor:
        return self.entries


class PlayedLane:
    """Both ends of one lane; a frame is delivered when it was sent and asked for."""

    def __init__(self) -> None:
        self.sent: deque[PlayedTransfer] = deque()
        self.received: list[PlayedTransfer] = []

    def send(self, tensors, num_entries) -> PlayedTransfer:
        entries = torch.empty(num_entries, dtype=torch.int32)
        joined(tensors, entries)
        transfer = PlayedTransfer(entries)
        self.sent.append(transfer)
        return transfer

    def receive(self, num_entries) -> PlayedTransfer:
        assert all(transfer.has_arrived for transfer in self.received)
        transfer = PlayedTransfer(torch.empty(num_entries, dtype=torch.int32))
        self.received.append(transfer)
        return transfer

    def deliver(self) -> None:
        sent, received = self.sent.popleft(), self.received[-1]
        received.entries[:] = sent.entries
        sent.has_arrived = received.has_arrived = True


@pytest.fixture
def ring():
    fd = SharedRegion.create(1 << 16)
    region = SharedRegion.attach(fd)
    yield region.to_target
    region.close()
    os.close(fd)


@pytest.fixture
def lane() -> PlayedLane:
    return PlayedLane()


def pair(ring, lane, epoch: int = 1) -> tuple[Sender, Receiver]:
    return Sender(ring, lane, epoch, 1.0), Receiver(ring, lane, epoch, 1.0)


def write(sender: Sender, frame) -> bool:
    data, entries = frame
    return sender.write([data[:7], data[7:]], [entries[:4].view(torch.float32), entries[4:]])


def cross(sender: Sender, receiver: Receiver, lane: PlayedLane, frame) -> None:
    """The frame is sent, announced, delivered and collected."""
    assert write(sender, frame)
    receiver.advance()
    lane.deliver()
    receiver.advance()


def is_next(receiver: Receiver, frame) -> bool:
    found = receiver.take()
    if found is None or found.device_part is None or found.data != frame[0]:
        return False
    entries = found.device_part.ids(len(frame[1]))
    found.device_part.finish()
    return bool((torch.as_tensor(entries) == frame[1]).all())


def test_frames_arrive_whole_and_in_order_when_their_device_part_does(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES:
        assert write(sender, frame)
        receiver.advance()
        assert not receiver.has_frame()
        lane.deliver()
        receiver.advance()
        assert is_next(receiver, frame)
        assert receiver.take() is None


def test_a_frame_without_a_device_part_is_there_at_once_but_overtakes_none(ring, lane):
    sender, receiver = pair(ring, lane)
    assert sender.write([b"first"])
    assert sender.write([b"second"], [torch.empty(0)])
    receiver.advance()
    for data in (b"first", b"second"):
        assert receiver.take() == (data, None)
    assert write(sender, FRAMES[0])
    assert sender.write([b"behind"])
    receiver.advance()
    assert not receiver.has_frame()
    lane.deliver()
    receiver.advance()
    assert is_next(receiver, FRAMES[0])
    assert receiver.take() == (b"behind", None)
    assert len(lane.received) == 1


def test_too_much_under_way_is_dropped_and_leaves_no_gap(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:MAX_MOVING]:
        assert write(sender, frame)
    assert not write(sender, FRAMES[-1])
    receiver.advance()
    lane.deliver()
    assert write(sender, FRAMES[MAX_MOVING])
    assert not write(sender, FRAMES[-1])
    for frame in FRAMES[: MAX_MOVING + 1]:
        receiver.advance()
        if lane.sent:
            lane.deliver()
        receiver.advance()
        assert is_next(receiver, frame)
    assert receiver.take() is None


def test_a_frame_without_room_is_not_announced(ring, lane):
    sender, receiver = pair(ring, lane)
    assert not sender.write([b"x"], [torch.zeros(MAX_ENTRIES), torch.zeros(1)])
    while ring.write([bytes(1000)]):
        pass
    while ring.write([b"x"]):
        pass
    assert not write(sender, FRAMES[0])
    assert not lane.sent
    ring.drop()
    cross(sender, receiver, lane, FRAMES[1])
    assert is_next(receiver, FRAMES[1])


def test_what_nobody_takes_stays_with_the_sender(ring, lane):
    """So that a peer cannot fill the device's memory."""
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:MAX_LANDED]:
        cross(sender, receiver, lane, frame)
    num_written = sum(write(sender, FRAMES[-1]) for _ in range(2 * MAX_MOVING))
    receiver.advance()
    assert num_written == MAX_MOVING
    assert len(lane.received) == MAX_LANDED
    assert is_next(receiver, FRAMES[0])
    receiver.advance()
    assert len(lane.received) == MAX_LANDED + 1


def test_frames_that_nobody_reads_stay_in_the_ring(ring, lane):
    sender, receiver = pair(ring, lane)
    for number in range(MAX_WAITING + 10):
        assert sender.write([bytes([number])])
    receiver.advance()
    assert not ring.is_empty()
    for number in range(MAX_WAITING):
        assert receiver.take() == (bytes([number]), None)
    receiver.advance()
    assert ring.is_empty()


def test_headers_of_another_epoch_or_seen_before_are_skipped(ring, lane):
    old = Sender(ring, PlayedLane(), 1, 1.0)
    assert write(old, FRAMES[0])
    sender, receiver = pair(ring, lane, epoch=2)
    cross(sender, receiver, lane, FRAMES[1])
    again = Sender(ring, PlayedLane(), 2, 1.0)  # announces number 0 once more
    assert write(again, FRAMES[2])
    cross(sender, receiver, lane, FRAMES[3])
    assert is_next(receiver, FRAMES[1])
    assert is_next(receiver, FRAMES[3])
    assert receiver.take() is None


def test_what_is_no_header_is_left_to_the_end_to_judge(ring, lane):
    sender, receiver = pair(ring, lane)
    source = random.Random(1)
    for frame in FRAMES[: MAX_WAITING // 2]:
        noise = source.randbytes(source.choice([1, 20, 24, 60]))
        assert ring.write([noise])
        cross(sender, receiver, lane, frame)
        assert receiver.take() == (noise, None)
        assert is_next(receiver, frame)


def test_a_flipped_bit_of_a_header_is_not_believed(ring, lane):
    sender, receiver = pair(ring, lane)
    assert write(sender, FRAMES[0])
    record = ring.read()
    for bit in range(8 * (len(record) - len(FRAMES[0][0]))):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        assert ring.write([damaged])
        receiver.advance()
        assert receiver.take() == (damaged, None)
    assert not lane.received


def test_who_misses_a_header_cannot_go_on(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:2]:
        assert write(sender, frame)
    ring.read()
    with pytest.raises(ValueError, match="header 0 is lost"):
        receiver.advance()


def test_a_length_that_cannot_be_is_not_received(ring, lane):
    _, receiver = pair(ring, lane)
    body = struct.pack("<IIQ", 1, MAX_ENTRIES + 1, 0)
    assert ring.write([struct.pack("<I", zlib.crc32(body)), body])
    with pytest.raises(ValueError, match=f"announces {MAX_ENTRIES + 1} entries"):
        receiver.advance()
    assert not lane.received


def test_a_transfer_that_takes_too_long_is_overdue_until_it_is_over(ring, lane):
    sender, receiver = pair(ring, lane)
    assert not sender.is_overdue()
    assert write(sender, FRAMES[0])
    receiver.advance()
    assert sender.is_overdue()
    assert receiver.is_overdue()
    lane.deliver()
    assert not sender.is_overdue()
    assert not receiver.is_overdue()


def test_a_failed_transfer_is_heard_of(ring, lane):
    sender, receiver = pair(ring, lane)
    assert write(sender, FRAMES[0])
    receiver.advance()
    lane.sent[0].error = lane.received[0].error = RuntimeError("closed by peer")
    for call in (sender.is_overdue, receiver.is_overdue, receiver.advance):
        with pytest.raises(RuntimeError, match="closed by peer"):
            call()
    with pytest.raises(RuntimeError, match="closed by peer"):
        write(sender, FRAMES[1])
