"""What travels beside a frame: the same entries again in the same order, or nothing."""

import numpy as np
import pytest
import torch

from specserve.transport.group_link.device_part import TensorEntries, joined
from specserve.transport.link.envelope import Kind, Unsound, unseal
from specserve.transport.link.push_frames import encode_push, unpack_push
from specserve.transport.link.report_frames import encode_report, unpack_report
from tests.specserve.transport.group_link.device_messages import on_device, on_host
from tests.specserve.transport.link.messages import LIMITS, random_push, random_report, same


def crossed(message, *, more=0):
    """What arrives of a message whose device part is `more` entries longer than it should be."""
    is_push = not hasattr(message, "rows")
    encode, unpack = (encode_push, unpack_push) if is_push else (encode_report, unpack_report)
    frame = encode(on_device(message), 3, 7)
    entries = torch.empty(sum(map(torch.numel, frame.device_part)), dtype=torch.int32)
    if len(entries):
        joined(frame.device_part, entries)
    entries = torch.cat([entries, torch.ones(max(0, more), dtype=torch.int32)])
    entries = entries[: len(entries) + min(0, more)]
    assert frame.num_bytes == len(b"".join(encode(message, 3, 7).parts))
    data = bytearray(b"".join(frame.parts))
    envelope = unseal(data, Kind.PUSH if is_push else Kind.REPORT)
    return unpack(envelope.payload, LIMITS, TensorEntries(entries) if len(entries) else None)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_sent_is_received_and_as_long_as_on_the_host(seed: int):
    source = np.random.default_rng(seed)
    for message in (random_report(source), random_push(source)):
        assert same(message, on_host(crossed(message)))


@pytest.mark.parametrize("more", [-1, 1])
def test_a_part_shorter_or_longer_than_its_frame_says_is_nothing(more: int):
    source = np.random.default_rng(1)
    messages = [random_report(source) for _ in range(20)] + [random_push(source) for _ in range(20)]
    num_cut = 0
    for message in messages:
        if same(message, on_host(crossed(message))) and _has_entries(message):
            num_cut += 1
            with pytest.raises(Unsound):
                crossed(message, more=more)
    assert num_cut > 20


def _has_entries(message) -> bool:
    if not hasattr(message, "rows"):
        return message.kept_ids.size > 0
    return any(row.features.size or row.draft_top_k for row in message.rows)


def test_a_frame_whose_part_is_on_the_host_needs_none_beside_it():
    push = random_push(np.random.default_rng(2))
    frame = encode_push(push, 3, 7)
    assert not frame.device_part
    payload = unseal(b"".join(frame.parts), Kind.PUSH).payload
    with pytest.raises(Unsound, match="longer"):
        unpack_push(payload, LIMITS, TensorEntries(torch.ones(1, dtype=torch.int32)))


def test_token_ids_that_a_drafter_could_not_look_up_become_some_that_it_can():
    entries = torch.tensor([-5, 0, LIMITS.vocab_size - 1, LIMITS.vocab_size, 2**31 - 1])
    found = TensorEntries(entries.int()).token_ids(5, LIMITS)
    assert found.tolist() == [0, 0, LIMITS.vocab_size - 1] + 2 * [LIMITS.vocab_size - 1]
