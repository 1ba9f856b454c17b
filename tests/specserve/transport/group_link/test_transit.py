"""Headers and payloads over a lane that the test plays: what is skipped, what drops, what ends."""

import os
import random
import struct
import zlib
from collections import deque

import pytest

from specserve.transport.group_link.lanes import MAX_FRAME_BYTES, MAX_MOVING
from specserve.transport.group_link.transit import MAX_WAITING, Receiver, Sender
from specserve.transport.link.ring import SharedRegion

FRAMES = [random.Random(number).randbytes(30 + number) for number in range(200)]


class PlayedTransfer:
    began_s = 0.0  # long ago

    def __init__(self, payload: bytearray) -> None:
        self.payload = payload
        self.has_arrived = False
        self.error: Exception | None = None

    def is_done(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.has_arrived

    def frame(self) -> bytearray:
        return self.payload


class PlayedLane:
    """Both ends of one lane; a frame is delivered when it was sent and asked for."""

    def __init__(self) -> None:
        self.sent: deque[PlayedTransfer] = deque()
        self.received: list[PlayedTransfer] = []

    def send(self, parts, num_bytes) -> PlayedTransfer:
        transfer = PlayedTransfer(bytearray().join(parts))
        assert len(transfer.payload) == num_bytes
        self.sent.append(transfer)
        return transfer

    def receive(self, num_bytes) -> PlayedTransfer:
        assert all(transfer.has_arrived for transfer in self.received)
        transfer = PlayedTransfer(bytearray(num_bytes))
        self.received.append(transfer)
        return transfer

    def deliver(self) -> None:
        sent, received = self.sent.popleft(), self.received[-1]
        received.payload[:] = sent.payload
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


def cross(sender: Sender, receiver: Receiver, lane: PlayedLane, frame: bytes) -> None:
    """The frame is sent, announced, delivered and collected."""
    assert sender.write([frame])
    receiver.advance()
    lane.deliver()
    receiver.advance()


def test_frames_arrive_whole_and_in_order_when_their_payload_does(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES:
        assert sender.write([frame[:7], frame[7:]])
        receiver.advance()
        assert not receiver.has_frame()
        lane.deliver()
        receiver.advance()
        assert receiver.take() == frame
        assert receiver.take() is None


def test_too_much_under_way_is_dropped_and_leaves_no_gap(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:MAX_MOVING]:
        assert sender.write([frame])
    assert not sender.write([b"too much"])
    receiver.advance()
    lane.deliver()
    assert sender.write([FRAMES[MAX_MOVING]])
    assert not sender.write([b"too much"])
    arrived = []
    while lane.sent:
        receiver.advance()
        lane.deliver()
    receiver.advance()
    while (frame := receiver.take()) is not None:
        arrived.append(frame)
    assert arrived == FRAMES[: MAX_MOVING + 1]


def test_a_frame_without_room_is_not_announced(ring, lane):
    sender, receiver = pair(ring, lane)
    assert not sender.write([bytes(MAX_FRAME_BYTES), b"x"])
    while ring.write([bytes(1000)]):
        pass
    while ring.write([b"x"]):
        pass
    assert not sender.write([FRAMES[0]])
    assert not lane.sent
    ring.drop()
    cross(sender, receiver, lane, FRAMES[1])
    assert receiver.take() == FRAMES[1]


def test_what_nobody_reads_stays_with_the_sender(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:MAX_WAITING]:
        cross(sender, receiver, lane, frame)
    num_written = sum(sender.write([b"more"]) for _ in range(2 * MAX_MOVING))
    receiver.advance()
    assert num_written == MAX_MOVING
    assert len(lane.received) == MAX_WAITING
    assert receiver.take() == FRAMES[0]
    receiver.advance()
    assert len(lane.received) == MAX_WAITING + 1


def test_headers_of_another_epoch_or_seen_before_are_skipped(ring, lane):
    old = Sender(ring, PlayedLane(), 1, 1.0)
    assert old.write([FRAMES[0]])
    sender, receiver = pair(ring, lane, epoch=2)
    cross(sender, receiver, lane, FRAMES[1])
    again = Sender(ring, PlayedLane(), 2, 1.0)  # announces number 0 once more
    assert again.write([FRAMES[2]])
    cross(sender, receiver, lane, FRAMES[3])
    assert [receiver.take() for _ in range(3)] == [FRAMES[1], FRAMES[3], None]


def test_what_is_no_header_is_left_to_the_end_to_judge(ring, lane):
    sender, receiver = pair(ring, lane)
    source = random.Random(1)
    expected = []
    for frame in FRAMES[: MAX_WAITING // 2]:
        noise = source.randbytes(source.choice([1, 20, 24, 60]))
        assert ring.write([noise])
        cross(sender, receiver, lane, frame)
        expected += [noise, frame]
    assert [receiver.take() for _ in expected] == expected


def test_a_flipped_bit_of_a_header_is_not_believed(ring, lane):
    sender, receiver = pair(ring, lane)
    assert sender.write([FRAMES[0]])
    header = ring.read()
    for bit in range(8 * len(header)):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        assert ring.write([damaged])
        receiver.advance()
        assert receiver.take() == damaged
    assert not lane.received


def test_who_misses_a_header_cannot_go_on(ring, lane):
    sender, receiver = pair(ring, lane)
    for frame in FRAMES[:2]:
        assert sender.write([frame])
    ring.read()
    with pytest.raises(ValueError, match="header 0 is lost"):
        receiver.advance()


@pytest.mark.parametrize("num_bytes", [0, MAX_FRAME_BYTES + 1])
def test_a_length_that_cannot_be_is_not_received(ring, lane, num_bytes):
    _, receiver = pair(ring, lane)
    body = struct.pack("<IIQ", 1, num_bytes, 0)
    assert ring.write([struct.pack("<I", zlib.crc32(body)), body])
    with pytest.raises(ValueError, match=f"announces {num_bytes} bytes"):
        receiver.advance()
    assert not lane.received


def test_a_transfer_that_takes_too_long_is_overdue_until_it_is_over(ring, lane):
    sender, receiver = pair(ring, lane)
    assert not sender.is_overdue()
    assert sender.write([FRAMES[0]])
    receiver.advance()
    assert sender.is_overdue()
    assert receiver.is_overdue()
    lane.deliver()
    assert not sender.is_overdue()
    assert not receiver.is_overdue()


def test_a_failed_transfer_is_heard_of(ring, lane):
    sender, receiver = pair(ring, lane)
    assert sender.write([FRAMES[0]])
    receiver.advance()
    lane.sent[0].error = lane.received[0].error = RuntimeError("closed by peer")
    for call in (sender.is_overdue, receiver.is_overdue, receiver.advance):
        with pytest.raises(RuntimeError, match="closed by peer"):
            call()
    with pytest.raises(RuntimeError, match="closed by peer"):
        sender.write([FRAMES[1]])
