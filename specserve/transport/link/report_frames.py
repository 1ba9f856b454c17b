# pyright: strict
"""Reports as bytes of fixed layout, and back, with every field in its range.

    rows u32, feature size u32, the round latency and when it was sent f64; a record a row;
    int32 tokens and block of each row in turn; float32 confidences of each row with draft top-k;
    for a device: float32 features of each row in turn; then of each row with draft top-k
    int32 slot ids [S, M], float32 slot scores [S, M]

Features and slot scores are not looked at: reading all of them would cost more than everything else
here, and a wrong one makes a poor block, never a wrong token.
"""

import math
import struct
from typing import Any, NamedTuple

import numpy as np

from specserve.sampling.verification.method import VerificationMethod
from specserve.transport.link.envelope import Kind, Part, seal
from specserve.transport.link.frames import (
    FLOAT,
    MAX_ROUND,
    TOKEN,
    Cursor,
    Encoded,
    Entries,
    HostEntries,
    LinkLimits,
    check_confidences,
    check_tokens,
    flat,
    require,
    split,
)
from specserve.transport.link.messages import (
    DraftTopK,
    Floats,
    Ids,
    Numbers,
    Report,
    RowReport,
    Tokens,
)

_MAX_SAMPLE_INDEX = 2**12 - 1
_MAX_SCORED = 1 << 16  # tokens of a slot
_METHODS: tuple[str, ...] = tuple(method.value for method in VerificationMethod)
_METHOD_CODES = {method: code for code, method in enumerate(_METHODS)}
_COUNTS = struct.Struct("<IIdd")
_ROW = struct.Struct("<qqqdiiiiiiiBBBx")


class _Row(NamedTuple):
    """The record of a row, 64 bytes: its own numbers, and how long each of its arrays is.

    i64 stream, seed and speculation id; f64 temperature; i32 from `round` to `num_scored`; u8
    method, `awaits` and `has_confidences`; a byte that pads.
    """

    stream: int
    seed: int
    speculation_id: int
    temperature: float
    round: int
    start: int
    sample_index: int
    num_ids: int
    num_block: int
    num_slots: int  # S of the draft top-k; 0: there is none
    num_scored: int  # M
    method: int
    awaits: int
    has_confidences: int

    @property
    def num_confidences(self) -> int:
        """Of the draft top-k, one a drafted token."""
        return self.num_block * self.has_confidences if self.num_slots else 0


def encode_report(report: Report, epoch: int, sequence: int) -> Encoded:
    """The frame, which aliases the report's arrays until it is written."""
    records = bytearray()
    tokens: list[Part] = []
    confidences: list[Part] = []
    features: list[tuple[Ids | Numbers, np.dtype[Any]]] = []
    slots: list[tuple[Ids | Numbers, np.dtype[Any]]] = []
    feature_size = 0
    for row in report.rows:
        num_slots, num_scored, has_confidences = _shape(row.draft_top_k)
        records += _ROW.pack(
            row.stream, row.seed, row.speculation_id, row.temperature, row.round, row.start,
            row.sample_index, len(row.token_ids), len(row.block), num_slots, num_scored,
            _METHOD_CODES[row.method], row.awaits, has_confidences,
        )  # fmt: skip
        tokens += (flat(row.token_ids, TOKEN), flat(row.block, TOKEN))
        if row.features.nbytes:
            features.append((row.features, FLOAT))
            feature_size = row.features.shape[1]
        if row.draft_top_k is not None:
            confidences.append(flat(row.draft_top_k.confidences, FLOAT))
            slots.append((row.draft_top_k.slot_ids, TOKEN))
            slots.append((row.draft_top_k.slot_scores, FLOAT))
    counts = _COUNTS.pack(len(report.rows), feature_size, report.round_latency_s, report.sent_s)
    entries = split(features + slots)
    payload = [counts, records, *tokens, *confidences, *entries.parts]
    return Encoded(seal(Kind.REPORT, epoch, sequence, payload), entries.device_part)


def unpack_report(
    payload: memoryview, limits: LinkLimits, entries: Entries | None = None
) -> Report:
    """The report in an unsealed payload; `entries`: its device part, where that came beside it.

    Raises:
        Unsound: a length or a field out of range.
    """
    require(len(payload) >= _COUNTS.size, "payload shorter than its counts")
    num_rows, feature_size, round_latency_s, sent_s = _COUNTS.unpack_from(payload)
    require(math.isfinite(round_latency_s) and round_latency_s >= 0, "round latency out of range")
    require(math.isfinite(sent_s) and sent_s >= 0, "time out of range")
    require(num_rows <= limits.max_rows, "too many rows")
    require(feature_size in (0, limits.feature_size), "wrong feature size")
    cursor = Cursor(payload, _COUNTS.size)
    records = [_Row._make(row) for row in _ROW.iter_unpack(cursor.take(num_rows * _ROW.size))]
    for record in records:
        _check_row(record, limits)
    num_tokens = sum(record.num_ids + record.num_block for record in records)
    num_verified = sum(record.num_ids - 1 for record in records)
    tokens = cursor.array(TOKEN, num_tokens)
    # An empty feature part says that no row has news, or that the drafter reads token ids alone.
    require(not num_verified or feature_size == limits.feature_size, "wrong feature size")
    confidences = [cursor.array(FLOAT, record.num_confidences) for record in records]
    entries = entries or HostEntries(cursor)
    features = entries.numbers(num_verified * feature_size)
    draft_top_ks = [
        _take_draft_top_k(entries, record, own, limits)
        for record, own in zip(records, confidences, strict=True)
    ]
    entries.finish()
    cursor.finish()
    check_tokens(tokens, limits)
    features = features.reshape(num_verified, limits.feature_size)
    return Report(_cut_rows(records, tokens, features, draft_top_ks), round_latency_s, sent_s)


def _shape(draft_top_k: DraftTopK | None) -> tuple[int, int, bool]:
    """Slots, tokens of a slot, whether there are confidences."""
    if draft_top_k is None:
        return 0, 0, False
    num_slots, num_scored = draft_top_k.slot_ids.shape
    return num_slots, num_scored, len(draft_top_k.confidences) > 0


def _take_draft_top_k(
    entries: Entries, row: _Row, confidences: Floats, limits: LinkLimits
) -> DraftTopK | None:
    if not row.num_slots:
        return None
    shape = row.num_slots, row.num_scored
    slot_ids = entries.token_ids(row.num_slots * row.num_scored, limits)
    slot_scores = entries.numbers(row.num_slots * row.num_scored)
    check_confidences(confidences)
    return DraftTopK(confidences, slot_ids.reshape(*shape), slot_scores.reshape(*shape))


def _cut_rows(
    records: list[_Row], tokens: Tokens, features: Numbers, draft_top_ks: list[DraftTopK | None]
) -> list[RowReport]:
    rows: list[RowReport] = []
    token, feature = 0, 0
    for record, draft_top_k in zip(records, draft_top_ks, strict=True):
        block = token + record.num_ids
        num_verified = record.num_ids - 1
        rows.append(
            RowReport(
                stream=record.stream,
                round=record.round,
                seed=record.seed,
                sample_index=record.sample_index,
                method=_METHODS[record.method],
                temperature=record.temperature,
                start=record.start,
                token_ids=tokens[token:block],
                features=features[feature : feature + num_verified],
                block=tokens[block : block + record.num_block],
                speculation_id=record.speculation_id,
                awaits=bool(record.awaits),
                draft_top_k=draft_top_k,
            )
        )
        token = block + record.num_block
        feature += num_verified
    return rows


def _check_row(row: _Row, limits: LinkLimits) -> None:
    end = row.start + row.num_ids + row.num_block
    require(row.stream >= 0 and row.speculation_id >= 0, "negative identity")
    sound_temperature = math.isfinite(row.temperature) and row.temperature >= 0
    require(sound_temperature, "temperature out of range")
    require(0 <= row.round <= MAX_ROUND, "round out of range")
    require(0 <= row.sample_index <= _MAX_SAMPLE_INDEX, "sample index out of range")
    require(row.num_ids >= 1, "no anchor")
    require(0 <= row.num_block <= limits.gamma, "block length out of range")
    require(row.start >= 0 and end <= limits.max_positions, "out of context")
    require(0 <= row.num_slots <= row.num_block + 1, "slots out of range")
    require(0 <= row.num_scored <= _MAX_SCORED, "slot size out of range")
    is_flag = row.awaits <= 1 and row.has_confidences <= 1
    require(row.method < len(_METHODS) and is_flag, "unknown method or flag")
