"""What waits to enter contexts: a target that sends what nobody asked for fills no memory."""

import numpy as np
import pytest
import torch

from draft_node.draft_slot import Segment
from draft_node.draft_slots import DraftSlots
from specserve.drafters.context import ContextCapacity
from specserve.drafters.ngram import NgramDrafter
from tests.draft_node.prespeculation.rounds import CPU, tokens

LEN, ROOM = 32, 128  # tokens
TEXT = tokens(ROOM).tolist()


@pytest.fixture
def streams() -> DraftSlots:
    capacity = ContextCapacity(num_tokens=ROOM, token_bytes=4, max_len=ROOM)
    return DraftSlots(NgramDrafter(gamma=4), dtype=torch.float32, device=CPU, capacity=capacity)


def segment(start: int, length: int = LEN) -> Segment:
    part = np.array(TEXT[start : start + length], np.int32)
    return Segment(start, part, np.empty((length, 0), np.float32))


def waiting(streams: DraftSlots) -> int:
    return sum(len(part.token_ids) for stream in streams for part in stream.segments)


def test_more_than_contexts_have_room_for_twice_does_not_wait(streams: DraftSlots):
    for number in range(3):
        for _ in range(20):
            streams.take_context(number, segment(LEN))  # behind a hole that nobody fills
            assert waiting(streams) <= 2 * ROOM
    for _ in range(3000):
        streams.take_context(4, segment(LEN, 1))  # small ones take memory, too
    assert waiting(streams) < ROOM


def test_what_was_forgotten_may_come_again(streams: DraftSlots):
    for number in range(9):
        streams.take_context(number, segment(LEN))
    assert waiting(streams) == 0
    streams.take_context(9, segment(0))
    streams.take_context(9, segment(LEN))
    while streams.extend(16):
        pass
    stream = streams.find(9)
    assert stream is not None
    assert stream.token_ids == TEXT[: 2 * LEN]


def test_what_has_entered_or_ended_waits_no_more(streams: DraftSlots):
    for number in range(50):
        streams.take_context(number, segment(0))
        streams.take_context(number, segment(2 * LEN))
        streams.extend(100)
        streams.free([number])
    for number in range(4):
        streams.take_context(number, segment(0))
        streams.take_context(number, segment(2 * LEN))
    assert waiting(streams) == 2 * ROOM
