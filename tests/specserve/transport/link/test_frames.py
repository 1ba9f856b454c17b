"""Reports and pushes as frames: the same again, or nothing, whatever the bytes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specserve.sampling.verification.method import VerificationMethod
from specserve.transport.link.envelope import HEADER_BYTES, Kind, seal
from specserve.transport.link.messages import BlockKey, DraftTopK, Push, Report, RowReport
from specserve.transport.link.push_frames import encode_push
from specserve.transport.link.report_frames import encode_report
from tests.specserve.transport.link.chaos import restamp
from tests.specserve.transport.link.messages import (
    LIMITS,
    METHODS,
    decode_push,
    decode_report,
    random_push,
    random_report,
    same,
)

EPOCH = 3
DRAFT_TOP_K = DraftTopK(
    confidences=np.array([0.5, 1.0], np.float32),
    slot_ids=np.array([[6, 7, 8], [9, 10, 11]], np.int32),
    slot_scores=np.array([[0.0, -1.0, -np.inf], [2.0, 1.0, 0.0]], np.float32),
)
ROW = RowReport(
    stream=1, round=2, seed=-3, sample_index=4, method="rejection", temperature=0.5, start=5,
    token_ids=np.array([6, 7], np.int32), features=np.ones((1, 8), np.float32),
    block=np.array([8, 9], np.int32), speculation_id=10, awaits=True,
    draft_top_k=DRAFT_TOP_K,
)  # fmt: skip
PUSH = Push(
    keys=[BlockKey(1, 2, 3, 4)],
    speculation_ids=[5],
    lengths=[2],
    token_ids=np.array([[6, 7]], np.int32),
    confidences=np.array([[0.5, 1.0]], np.float32),
    kept_ids=np.array([[[8], [9]]], np.int32),
    kept_probs=np.array([[[1.0], [1.0]]], np.float32),
)


def report_frame(*rows, epoch=EPOCH):
    return b"".join(encode_report(Report(list(rows)), epoch, 0).parts)


def push_frame(push=PUSH, epoch=EPOCH):
    return b"".join(encode_push(push, epoch, 0).parts)


def decode(frame, limits=LIMITS):
    """What either decoder makes of it; never both."""
    report, push = decode_report(frame, EPOCH, limits), decode_push(frame, EPOCH, limits)
    assert report is None or push is None
    return report or push


def within_limits(message):
    if isinstance(message, Report):
        return len(message.rows) <= LIMITS.max_rows and all(map(row_within_limits, message.rows))
    width = message.token_ids.shape[1]
    return (
        len(message.keys) <= LIMITS.max_blocks
        and 1 <= width <= LIMITS.gamma
        and message.kept_ids.shape[2] <= LIMITS.max_kept
        and all(key.stream >= 0 and 0 <= key.round < 2**20 for key in message.keys)
        and all(0 <= key.position < LIMITS.max_positions for key in message.keys)
        and all(0 <= key.anchor_id < LIMITS.vocab_size for key in message.keys)
        and all(number > 0 for number in message.speculation_ids)
        and all(1 <= length <= width for length in message.lengths)
        and ids_within_limits(message.token_ids)
        and all(0 <= confidence <= 1 for confidence in message.confidences.flat)
    )


def row_within_limits(row):
    return (
        row.stream >= 0
        and 0 <= row.round < 2**20
        and 0 <= row.sample_index < 2**12
        and row.method in METHODS
        and math.isfinite(row.temperature)
        and row.temperature >= 0
        and row.speculation_id >= 0
        and len(row.token_ids) >= 1
        and row.features.shape == (len(row.token_ids) - 1, LIMITS.feature_size)
        and len(row.block) <= LIMITS.gamma
        and row.start >= 0
        and row.position + len(row.block) < LIMITS.max_positions
        and ids_within_limits(row.token_ids)
        and ids_within_limits(row.block)
        and (row.draft_top_k is None or draft_top_k_within_limits(row.draft_top_k, len(row.block)))
    )


def draft_top_k_within_limits(draft_top_k, verify_len):
    return (
        len(draft_top_k.confidences) in (0, verify_len)
        and all(0 <= confidence <= 1 for confidence in draft_top_k.confidences)
        and 1 <= len(draft_top_k.slot_ids) <= verify_len + 1
        and draft_top_k.slot_ids.shape == draft_top_k.slot_scores.shape
        and ids_within_limits(draft_top_k.slot_ids)
    )


def ids_within_limits(ids):
    return all(0 <= token_id < LIMITS.vocab_size for token_id in ids.flat)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_encoded_is_decoded(seed):
    source = np.random.default_rng(seed)
    report, push = random_report(source), random_push(source)
    report_bytes = bytearray(b"".join(encode_report(report, EPOCH, 2**64 - 1).parts))
    push_bytes = bytearray(b"".join(encode_push(push, EPOCH, 7).parts))
    assert same(report, decode_report(report_bytes, EPOCH, LIMITS))
    assert same(push, decode_push(push_bytes, EPOCH, LIMITS))


def test_decoded_arrays_are_views_of_the_frame_that_a_tensor_can_share():
    frame = bytearray(push_frame())
    push = decode_push(frame, EPOCH, LIMITS)
    for array in (push.token_ids, push.confidences, push.kept_ids, push.kept_probs):
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.base is not None


def test_arrays_in_other_layouts_travel_by_value():
    strided = np.arange(20, dtype=np.int64)[::5]
    row = replace(ROW, token_ids=strided, features=np.ones((8, 3), np.float64).T * 2)
    decoded = decode(report_frame(row)).rows[0]
    assert decoded.token_ids.tolist() == [0, 5, 10, 15]
    assert decoded.features.tolist() == [[2.0] * 8] * 3


def test_a_drafter_without_features_gets_rows_without_columns():
    limits = replace(LIMITS, feature_size=0)
    row = replace(ROW, features=np.empty((1, 0), np.float32))
    assert same(Report([row]), decode(report_frame(row), limits))


def test_rows_with_and_without_news_share_a_report():
    silent = replace(ROW, token_ids=np.array([7], np.int32), features=np.empty((0, 8), np.float32))
    rows = [silent, ROW, silent]
    assert same(Report(rows), decode(report_frame(*rows)))
    assert same(Report([silent]), decode(report_frame(silent)))


def test_every_method_has_a_code():
    assert set(METHODS) == {method.value for method in VerificationMethod}
    for method in METHODS:
        assert decode(report_frame(replace(ROW, method=method))).rows[0].method == method


ids = np.int32


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": -1},
        {"draft_top_k": replace(DRAFT_TOP_K, confidences=np.array([0.5, 1.1], np.float32))},
        {"draft_top_k": replace(DRAFT_TOP_K, confidences=np.array([0.5, np.nan], np.float32))},
        {"draft_top_k": replace(DRAFT_TOP_K, slot_ids=DRAFT_TOP_K.slot_ids + 1000)},
        {
            "block": np.array([8], np.int32),
            "draft_top_k": replace(  # a slot too many
                DRAFT_TOP_K,
                confidences=DRAFT_TOP_K.confidences[:1],
                slot_ids=np.zeros((3, 2), np.int32),
                slot_scores=np.zeros((3, 2), np.float32),
            ),
        },
        {"round": -1},
        {"round": 2**20},
        {"sample_index": -1},
        {"sample_index": 2**12},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"start": -1},
        {"start": LIMITS.max_positions - 3},
        {"token_ids": np.array([6, -1], ids)},
        {"token_ids": np.array([LIMITS.vocab_size, 7], ids)},
        {"token_ids": np.array([], ids), "features": np.empty((0, 8), np.float32)},
        {"features": np.ones((1, 7), np.float32)},
        {"features": np.ones((2, 8), np.float32)},
        {"features": np.ones((0, 8), np.float32)},
        {"block": np.array([8, -(2**31)], ids)},
        {"block": np.array([2**31 - 1], ids)},
        {"block": np.zeros(LIMITS.gamma + 1, ids)},
        {"speculation_id": -1},
    ],
    ids=str,
)
def test_a_row_with_a_field_out_of_range_is_nothing(fields):
    assert decode(report_frame(ROW)) is not None
    assert decode(report_frame(ROW, replace(ROW, **fields))) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"keys": [BlockKey(-1, 2, 3, 4)]},
        {"keys": [BlockKey(1, -1, 3, 4)]},
        {"keys": [BlockKey(1, 2**20, 3, 4)]},
        {"keys": [BlockKey(1, 2, -1, 4)]},
        {"keys": [BlockKey(1, 2, LIMITS.max_positions, 4)]},
        {"keys": [BlockKey(1, 2, 3, -1)]},
        {"keys": [BlockKey(1, 2, 3, LIMITS.vocab_size)]},
        {"speculation_ids": [0]},
        {"speculation_ids": [-1]},
        {"lengths": [0]},
        {"lengths": [3]},
        {"lengths": [-1]},
        {"token_ids": np.array([[6, -1]], ids)},
        {"token_ids": np.array([[LIMITS.vocab_size, 6]], ids)},
        {"token_ids": np.array([[6]], ids)},
        {"token_ids": np.zeros((1, LIMITS.gamma + 1), ids)},
        {"token_ids": np.zeros((1, 0), ids)},
        {"confidences": np.array([[0.5, 1.01]], np.float32)},
        {"confidences": np.array([[-0.01, 0.5]], np.float32)},
        {"confidences": np.array([[0.5, np.nan]], np.float32)},
        {"confidences": np.array([[0.5]], np.float32)},
        {"kept_ids": np.zeros((1, 2, 2), ids)},
        {"kept_ids": np.zeros((1, 1, 1), ids)},
        {"kept_probs": np.zeros((1, 2, 2), np.float32)},
        {"kept_ids": np.zeros((1, 2, 8), ids), "kept_probs": np.zeros((1, 2, 8), np.float32)},
        {"draft_batch_s": -0.001},
        {"draft_batch_s": math.nan},
        {"draft_batch_s": 3601.0},
    ],
    ids=str,
)
def test_a_push_with_a_field_out_of_range_is_nothing(fields):
    assert decode(push_frame()) is not None
    assert decode(push_frame(replace(PUSH, **fields))) is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("keys", [BlockKey(-1, 2, 3, 4)]),
        ("keys", [BlockKey(1, -1, 3, 4), BlockKey(1, 2**20, 3, 4)]),
        ("keys", [BlockKey(1, 2, -1, 4), BlockKey(1, 2, LIMITS.max_positions, 4)]),
        ("keys", [BlockKey(1, 2, 3, -1), BlockKey(1, 2, 3, LIMITS.vocab_size)]),
        ("speculation_ids", [0]),
        ("lengths", [0, 3]),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_block_of_a_push_is_within_limits(name, values, place):
    three = Push(
        keys=PUSH.keys * 3,
        speculation_ids=[5, 6, 7],
        lengths=[2] * 3,
        token_ids=PUSH.token_ids.repeat(3, 0),
        confidences=PUSH.confidences.repeat(3, 0),
        kept_ids=PUSH.kept_ids.repeat(3, 0),
        kept_probs=PUSH.kept_probs.repeat(3, 0),
    )
    assert decode(push_frame(three)) is not None
    for value in values:
        fields = list(getattr(three, name))
        fields[place] = value
        assert decode(push_frame(replace(three, **{name: fields}))) is None


def test_no_more_rows_or_blocks_than_agreed():
    assert decode(report_frame(*[ROW] * LIMITS.max_rows)) is not None
    assert decode(report_frame(*[ROW] * (LIMITS.max_rows + 1))) is None
    blocks = random_push(np.random.default_rng(0), replace(LIMITS, max_blocks=40))
    assert len(blocks.keys) > LIMITS.max_blocks
    assert decode(push_frame(blocks)) is None


@pytest.mark.parametrize("frame", [report_frame(ROW), push_frame()], ids=["report", "push"])
def test_no_flipped_bit_goes_unnoticed(frame):
    for bit in range(len(frame) * 8):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode(flipped) is None


@pytest.mark.parametrize("frame", [report_frame(ROW), push_frame()], ids=["report", "push"])
def test_nothing_but_the_whole_frame_counts(frame):
    for end in range(len(frame)):
        assert decode(frame[:end]) is None
    assert decode(frame + b"\0") is None
    assert decode(frame + frame) is None


@pytest.mark.parametrize("frame", [report_frame(ROW), push_frame()], ids=["report", "push"])
def test_a_soundly_sealed_lie_is_nothing_or_within_limits(frame):
    """Whoever can seal can still not make a node index out of bounds."""
    kind = Kind(frame[7])
    for bit in range((len(frame) - HEADER_BYTES) * 8):
        payload = bytearray(frame[HEADER_BYTES:])
        payload[bit // 8] ^= 1 << bit % 8
        message = decode(b"".join(seal(kind, EPOCH, 0, [payload])))
        assert message is None or within_limits(message)


@pytest.mark.parametrize("kind", list(Kind))
def test_sealed_noise_is_nothing(kind):
    source = np.random.default_rng(1)
    for num_bytes in range(200):
        for _ in range(5):
            assert decode(b"".join(seal(kind, EPOCH, 0, [source.bytes(num_bytes)]))) is None
    for _ in range(500):  # small counts, so that more than the counts is read
        payload = source.integers(0, 3, int(source.integers(0, 300))).astype(np.uint32).tobytes()
        message = decode(b"".join(seal(kind, EPOCH, 0, [payload])))
        assert message is None or within_limits(message)


def test_a_payload_shorter_or_longer_than_its_counts_is_nothing():
    for frame in (report_frame(ROW), push_frame()):
        payload, kind = frame[HEADER_BYTES:], Kind(frame[7])
        for end in range(len(payload)):
            assert decode(b"".join(seal(kind, EPOCH, 0, [payload[:end]]))) is None
        assert decode(b"".join(seal(kind, EPOCH, 0, [payload, bytes(4)]))) is None


@pytest.mark.parametrize("epoch", [0, 1, EPOCH - 1, EPOCH + 1, 2**32 - 1])
def test_another_epoch_is_nothing_even_when_sound(epoch):
    assert decode(report_frame(ROW, epoch=epoch)) is None
    assert decode(push_frame(epoch=epoch)) is None
    assert decode(restamp(push_frame(), epoch)) is None
    assert same(PUSH, decode(restamp(push_frame(epoch=epoch), EPOCH)))


def test_an_unknown_magic_version_or_kind_is_nothing_even_with_its_checksum():
    for at in (4, 5, 6, 7):
        frame = bytearray(push_frame())
        frame[at] ^= 0xFF
        assert decode(restamp(bytes(frame), EPOCH)) is None
