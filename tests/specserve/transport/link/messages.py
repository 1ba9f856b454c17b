"""Random sound messages, their equality, and limits that they keep."""

import numpy as np

from specserve.transport.link.envelope import Kind, Unsound, unseal
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import BlockKey, DraftTopK, Push, Report, RowReport
from specserve.transport.link.push_frames import unpack_push
from specserve.transport.link.report_frames import unpack_report

LIMITS = LinkLimits(
    vocab_size=1000,
    gamma=6,
    feature_size=8,
    max_positions=512,
    max_rows=5,
    max_kept=7,
    max_blocks=9,
)
METHODS = ("rejection", "foreseeable", "coupled")


def decode_push(frame, epoch, limits=LIMITS):
    """None for anything unsound or of another epoch."""
    return _decoded(frame, Kind.PUSH, epoch, limits, unpack_push)


def decode_report(frame, epoch, limits=LIMITS):
    return _decoded(frame, Kind.REPORT, epoch, limits, unpack_report)


def _decoded(frame, kind, epoch, limits, unpack):
    try:
        envelope = unseal(frame, kind)
        return unpack(envelope.payload, limits) if envelope.epoch == epoch else None
    except Unsound:
        return None


def random_row(source, limits=LIMITS, num_verified=None):
    n = int(source.integers(0, 12)) if num_verified is None else num_verified
    k = int(source.integers(0, limits.gamma + 1))
    return RowReport(
        stream=int(source.integers(0, 2**63)),
        round=int(source.integers(0, 2**20)),
        seed=int(source.integers(-(2**63), 2**63)),
        sample_index=int(source.integers(0, 2**12)),
        method=METHODS[source.integers(0, 3)],
        temperature=float(source.choice([0.0, source.random() * 2])),
        start=int(source.integers(0, limits.max_positions - n - k)),
        token_ids=source.integers(0, limits.vocab_size, n + 1).astype(np.int32),
        features=source.standard_normal((n, limits.feature_size)).astype(np.float32),
        block=source.integers(0, limits.vocab_size, k).astype(np.int32),
        speculation_id=int(source.integers(0, 2**63)),
        awaits=bool(source.integers(0, 2)),
        draft_top_k=random_draft_top_k(source, k, limits) if source.integers(0, 2) else None,
    )


def random_draft_top_k(source, verify_len, limits=LIMITS):
    shape = int(source.integers(1, verify_len + 2)), int(source.integers(1, 20))
    num_confidences = verify_len * int(source.integers(0, 2))
    return DraftTopK(
        confidences=source.random(num_confidences).astype(np.float32),
        slot_ids=source.integers(0, limits.vocab_size, shape).astype(np.int32),
        slot_scores=source.standard_normal(shape).astype(np.float32),
    )


def random_report(source, limits=LIMITS):
    num_rows = int(source.integers(0, limits.max_rows + 1))
    rows = [random_row(source, limits) for _ in range(num_rows)]
    return Report(rows, *source.random(2).tolist())


def random_push(source, limits=LIMITS):
    num_blocks = int(source.integers(0, limits.max_blocks + 1))
    width = int(source.integers(1, limits.gamma + 1))
    num_kept = int(source.integers(0, limits.max_kept + 1))
    with_confidences = int(source.integers(0, 2))
    shape = (num_blocks, width)
    keys = [
        BlockKey(
            int(source.integers(0, 2**63)),
            int(source.integers(0, 2**20)),
            int(source.integers(0, limits.max_positions)),
            int(source.integers(0, limits.vocab_size)),
        )
        for _ in range(num_blocks)
    ]
    return Push(
        keys=keys,
        speculation_ids=source.integers(1, 2**63, num_blocks).tolist(),
        lengths=source.integers(1, width + 1, num_blocks).tolist(),
        token_ids=source.integers(0, limits.vocab_size, shape).astype(np.int32),
        confidences=source.random((num_blocks, width * with_confidences), dtype=np.float32),
        kept_ids=source.integers(0, 2**31, (*shape, num_kept)).astype(np.int32),
        kept_probs=source.random((*shape, num_kept), dtype=np.float32),
        draft_batch_s=float(source.random()),
    )


def numbered_push(number, stream=1, num_kept=4):
    """A push whose every byte follows from its number, so that a damaged one shows."""
    count = 2 * 5
    return Push(
        keys=[BlockKey(stream, number % 1000, number % 500, number % 900 + i) for i in range(2)],
        speculation_ids=[2 * number + 1, 2 * number + 2],
        lengths=[5, 1 + number % 5],
        token_ids=((np.arange(count) * 7 + number) % 1000).astype(np.int32).reshape(2, 5),
        confidences=((np.arange(count) + number) % 97 / 97).astype(np.float32).reshape(2, 5),
        kept_ids=np.arange(number, number + count * num_kept, dtype=np.int32).reshape(2, 5, -1),
        kept_probs=np.full((2, 5, num_kept), 1 / (1 + number), np.float32),
    )


def number_of(push):
    return (push.speculation_ids[0] - 1) // 2


def same(first, second):
    """Field by field; arrays by type, shape and value."""
    if isinstance(first, Report):
        alike = (
            len(first.rows) == len(second.rows) and first.round_latency_s == second.round_latency_s
        )
        alike &= first.sent_s == second.sent_s
        return alike and all(map(_same, first.rows, second.rows))
    return _same(first, second)


def _same(first, second):
    return all(
        _equal(getattr(first, name), getattr(second, name)) for name in type(first).__slots__
    )


def _equal(first, second):
    if isinstance(first, DraftTopK):
        return isinstance(second, DraftTopK) and _same(first, second)
    if isinstance(first, np.ndarray):
        alike = (first.dtype, first.shape) == (second.dtype, second.shape)
        return alike and bool((first == second).all())
    return type(first) is type(second) and first == second
