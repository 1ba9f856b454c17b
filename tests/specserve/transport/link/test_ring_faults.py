"""Counters, lengths and bytes of a ring that somebody has scribbled over."""

import os
import random
import struct

import pytest

from tests.specserve.transport.link.messages import number_of, numbered_push, same
from tests.specserve.transport.link.scribbling import AT_HEAD, AT_TAIL, RING_BYTES, poke


@pytest.mark.parametrize("at", [AT_HEAD, AT_TAIL])
@pytest.mark.parametrize(
    "change",
    [
        lambda word: word + 8,
        lambda word: word - 8,
        lambda word: word + 3,
        lambda word: word + RING_BYTES,
        lambda word: word + RING_BYTES + 8,
        lambda word: word - RING_BYTES - 16,
        lambda word: 0,
        lambda word: 2**64 - 1,
        lambda word: 2**63,
        lambda word: 0xDEADBEEFDEADBEEF,
    ],
)
@pytest.mark.parametrize("num_waiting", [0, 1, 5])
def test_a_scribbled_counter_costs_frames_and_nothing_else(fd, ends, at, change, num_waiting):
    target, draft = ends
    draft.send(numbered_push(0))
    assert len(target.receive()) == 1
    for number in range(1, 1 + num_waiting):
        assert draft.send(numbered_push(number))
    poke(fd, at, change(struct.unpack("<Q", os.pread(fd, 8, at))[0]))
    for _ in range(20):
        for push in target.receive():
            assert same(push, numbered_push(number_of(push)))
    for number in (7, 8, 9):
        assert draft.send(numbered_push(number))
    assert [number_of(push) for push in target.receive()] == [7, 8, 9]


@pytest.mark.parametrize("length", [0, 1, 2000, RING_BYTES, 2**32, 2**63, 2**64 - 1])
def test_a_scribbled_length_costs_what_waits_and_nothing_else(fd, region, ends, length):
    target, draft = ends
    first = 4096 + RING_BYTES  # the ring to the target lies behind the other
    for number in range(3):
        draft.send(numbered_push(number))
    poke(fd, first, length)
    while not target.is_empty():
        for push in target.receive():
            assert same(push, numbered_push(number_of(push)))
    if length == 1:  # there can be such a record; what follows it are not records
        assert target.counters.num_malformed >= 1
    else:
        assert region.to_target.num_resets == 1
        assert target.counters.num_received == 0
    assert draft.send(numbered_push(9))
    assert [number_of(push) for push in target.receive()] == [9]


def test_random_scribbling_never_raises_and_never_changes_a_message(fd, ends):
    target, draft = ends
    source = random.Random(7)
    num_received = 0
    for number in range(3000):
        draft.send(numbered_push(number))
        if source.random() < 0.5:
            at = source.choice([AT_HEAD, AT_TAIL, 4096 + RING_BYTES + source.randrange(RING_BYTES)])
            noise = source.randbytes(min(source.randint(1, 8), 4096 + 2 * RING_BYTES - at))
            os.pwrite(fd, noise, at)
        for push in target.receive():
            assert same(push, numbered_push(number_of(push)))
            num_received += 1
    assert num_received > 1000
    for _ in range(3):
        target.receive()
    assert draft.send(numbered_push(9999))
    assert [number_of(push) for push in target.receive()] == [9999]
