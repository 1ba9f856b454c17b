# pyright: strict
"""Reports and pushes as bytes of fixed layout, and back, with every field in its range.

Knows neither how frames travel nor what a node does with them. Little-endian throughout:

    Report  rows u32, feature size u32; a record a row; int32 tokens and block of each row in turn;
            float32 features of each row in turn
    Push    blocks, width G, confidences (0 or 1) and law entries M, u32 each; a record a block;
            int32 tokens [B, G]; float32 confidences [B, G]; int32 law ids, float32 probs [B, G, M]

Decoding copies nothing: arrays are views of the frame, which its receiver has taken out of shared
memory before (`ring.ByteRing.read` makes the one copy), so nobody can change them afterwards.

Tokens and confidences behind a block's length are padding and must be in range too; zeros do.
Laws are checked for their shape alone, since `DraftLaw.sound` judges the form of those that are
used. Features are not looked at: reading all of them would cost more than everything else here,
and a wrong feature makes a poor block, never a wrong token.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specserve.decoding.verification.rule import VerificationRule
from specserve.link.envelope import Kind, Part, Unsound, seal, unseal
from specserve.link.messages import BlockKey, Floats, Push, Report, RowReport, Tokens

_MAX_ROUND = 2**20 - 1  # what the noise has room for
_MAX_SAMPLE_INDEX = 2**12 - 1
_RULES: tuple[str, ...] = tuple(rule.value for rule in VerificationRule)
_RULE_CODES = {rule: code for code, rule in enumerate(_RULES)}

_REPORT_COUNTS = struct.Struct("<II")
_PUSH_COUNTS = struct.Struct("<IIII")
_TOKEN = np.dtype("<i4")
_FLOAT = np.dtype("<f4")


class _Row(NamedTuple):
    """The record of a row."""

    stream: int
    seed: int
    speculation_id: int
    temperature: float
    round: int
    start: int
    sample_index: int
    num_ids: int
    num_block: int
    rule: int
    awaits: int


class _Block(NamedTuple):
    """The record of a block."""

    stream: int
    speculation_id: int
    round: int
    position: int
    anchor_id: int
    length: int


_ROW = struct.Struct("<qqqdiiiiiBBxx")
_BLOCK = struct.Struct("<qqiiii")


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The largest values that a frame of this link may hold; both ends must agree on them."""

    vocab_size: int
    gamma: int  # tokens of a block
    feature_size: int  # H; 0: the drafter reads token ids alone
    max_positions: int  # of a stream: the model's context
    max_rows: int  # of a report
    max_kept: int  # M, entries of a law
    max_blocks: int = 256  # of a push


def encode_report(report: Report, epoch: int, sequence: int) -> list[Part]:
    """The frame in parts; they alias the report's arrays until they are written."""
    records = bytearray()
    tokens: list[Part] = []
    features: list[Part] = []
    feature_size = 0
    for row in report.rows:
        records += _ROW.pack(
            row.stream, row.seed, row.speculation_id, row.temperature, row.round, row.start,
            row.sample_index, len(row.token_ids), len(row.block), _RULE_CODES[row.rule], row.awaits,
        )  # fmt: skip
        tokens += (_flat(row.token_ids, _TOKEN), _flat(row.block, _TOKEN))
        if row.features.size:
            features.append(_flat(row.features, _FLOAT))
            feature_size = row.features.shape[1]
    counts = _REPORT_COUNTS.pack(len(report.rows), feature_size)
    return seal(Kind.REPORT, epoch, sequence, [counts, records, *tokens, *features])


def encode_push(push: Push, epoch: int, sequence: int) -> list[Part]:
    """The frame in parts; they alias the push's arrays until they are written."""
    width, num_kept = push.token_ids.shape[1], push.law_ids.shape[2]
    has_confidences = push.confidences.shape[1] > 0
    parts: list[Part] = [_PUSH_COUNTS.pack(len(push.keys), width, has_confidences, num_kept)]
    fields = zip(push.keys, push.speculation_ids, push.lengths, strict=True)
    parts += [
        _BLOCK.pack(key.stream, speculation_id, key.round, key.position, key.anchor_id, length)
        for key, speculation_id, length in fields
    ]
    parts += (
        _flat(push.token_ids, _TOKEN),
        _flat(push.confidences, _FLOAT),
        _flat(push.law_ids, _TOKEN),
        _flat(push.law_probs, _FLOAT),
    )
    return seal(Kind.PUSH, epoch, sequence, parts)


def decode_report(frame: Part, epoch: int, limits: LinkLimits) -> Report | None:
    """The report in `frame`; None for anything unsound or of another epoch. Never raises."""
    try:
        envelope = unseal(frame, Kind.REPORT)
        return unpack_report(envelope.payload, limits) if envelope.epoch == epoch else None
    except Unsound:
        return None


def decode_push(frame: Part, epoch: int, limits: LinkLimits) -> Push | None:
    """The push in `frame`; None for anything unsound or of another epoch. Never raises."""
    try:
        envelope = unseal(frame, Kind.PUSH)
        return unpack_push(envelope.payload, limits) if envelope.epoch == epoch else None
    except Unsound:
        return None


def unpack_report(payload: memoryview, limits: LinkLimits) -> Report:
    """The report in an unsealed payload.

    Raises:
        Unsound: a length or a field out of range.
    """
    _require(len(payload) >= _REPORT_COUNTS.size, "payload shorter than its counts")
    num_rows, feature_size = _REPORT_COUNTS.unpack_from(payload)
    _require(num_rows <= limits.max_rows, "too many rows")
    _require(feature_size in (0, limits.feature_size), "wrong feature size")
    cursor = _Cursor(payload, _REPORT_COUNTS.size)
    records = [_Row._make(row) for row in _ROW.iter_unpack(cursor.take(num_rows * _ROW.size))]
    for record in records:
        _check_row(record, limits)
    num_tokens = sum(record.num_ids + record.num_block for record in records)
    num_verified = sum(record.num_ids - 1 for record in records)
    tokens = cursor.array(_TOKEN, num_tokens)
    # An empty feature part says that no row has news, or that the drafter reads token ids alone.
    _require(not num_verified or feature_size == limits.feature_size, "wrong feature size")
    features = cursor.array(_FLOAT, num_verified * feature_size)
    cursor.finish()
    _check_tokens(tokens, limits)
    return Report(_cut_rows(records, tokens, features.reshape(num_verified, limits.feature_size)))


def unpack_push(payload: memoryview, limits: LinkLimits) -> Push:
    """The push in an unsealed payload.

    Raises:
        Unsound: a length or a field out of range.
    """
    _require(len(payload) >= _PUSH_COUNTS.size, "payload shorter than its counts")
    num_blocks, width, has_confidences, num_kept = _PUSH_COUNTS.unpack_from(payload)
    _require(num_blocks <= limits.max_blocks, "too many blocks")
    _require(1 <= width <= limits.gamma, "block width out of range")
    _require(has_confidences <= 1, "neither with nor without confidences")
    _require(num_kept <= limits.max_kept, "too many law entries")
    cursor = _Cursor(payload, _PUSH_COUNTS.size)
    records = [_Block._make(b) for b in _BLOCK.iter_unpack(cursor.take(num_blocks * _BLOCK.size))]
    for record in records:
        _check_block(record, width, limits)
    num_tokens = num_blocks * width
    tokens = cursor.array(_TOKEN, num_tokens)
    confidences = cursor.array(_FLOAT, num_tokens * has_confidences)
    law_ids = cursor.array(_TOKEN, num_tokens * num_kept)
    law_probs = cursor.array(_FLOAT, num_tokens * num_kept)
    cursor.finish()
    _check_tokens(tokens, limits)
    _check_confidences(confidences)
    return Push(
        keys=[BlockKey(r.stream, r.round, r.position, r.anchor_id) for r in records],
        speculation_ids=[record.speculation_id for record in records],
        lengths=[record.length for record in records],
        token_ids=tokens.reshape(num_blocks, width),
        confidences=confidences.reshape(num_blocks, width * has_confidences),
        law_ids=law_ids.reshape(num_blocks, width, num_kept),
        law_probs=law_probs.reshape(num_blocks, width, num_kept),
    )


def _cut_rows(records: list[_Row], tokens: Tokens, features: Floats) -> list[RowReport]:
    rows: list[RowReport] = []
    token, feature = 0, 0
    for record in records:
        block = token + record.num_ids
        num_verified = record.num_ids - 1
        rows.append(
            RowReport(
                stream=record.stream,
                round=record.round,
                seed=record.seed,
                sample_index=record.sample_index,
                rule=_RULES[record.rule],
                temperature=record.temperature,
                start=record.start,
                token_ids=tokens[token:block],
                features=features[feature : feature + num_verified],
                block=tokens[block : block + record.num_block],
                speculation_id=record.speculation_id,
                awaits=bool(record.awaits),
            )
        )
        token = block + record.num_block
        feature += num_verified
    return rows


def _check_row(row: _Row, limits: LinkLimits) -> None:
    end = row.start + row.num_ids + row.num_block
    _require(row.stream >= 0 and row.speculation_id >= 0, "negative identity")
    sound_temperature = math.isfinite(row.temperature) and row.temperature >= 0
    _require(sound_temperature, "temperature out of range")
    _require(0 <= row.round <= _MAX_ROUND, "round out of range")
    _require(0 <= row.sample_index <= _MAX_SAMPLE_INDEX, "sample index out of range")
    _require(row.num_ids >= 1, "no anchor")
    _require(0 <= row.num_block <= limits.gamma, "block length out of range")
    _require(row.start >= 0 and end <= limits.max_positions, "out of context")
    _require(row.rule < len(_RULES) and row.awaits <= 1, "unknown rule or flag")


def _check_block(block: _Block, width: int, limits: LinkLimits) -> None:
    _require(block.stream >= 0, "negative identity")
    _require(block.speculation_id > 0, "speculation id out of range")
    _require(0 <= block.round <= _MAX_ROUND, "round out of range")
    _require(0 <= block.position < limits.max_positions, "out of context")
    _require(0 <= block.anchor_id < limits.vocab_size, "token id out of range")
    _require(1 <= block.length <= width, "block length out of range")


def _check_tokens(token_ids: Tokens, limits: LinkLimits) -> None:
    if token_ids.size:  # unsigned, a negative id is a huge one: one pass for both bounds
        _require(token_ids.view("<u4").max() < limits.vocab_size, "token id out of range")


def _check_confidences(confidences: Floats) -> None:
    if confidences.size:  # a NaN is the minimum and the maximum, and compares false
        sound = confidences.min() >= 0 and confidences.max() <= 1
        _require(bool(sound), "confidence out of range")


def _require(sound: bool, reason: str) -> None:
    if not sound:
        raise Unsound(reason)


def _flat(array: NDArray[Any], dtype: "np.dtype[Any]") -> Part:
    """The array's own bytes, or those of a converted copy."""
    return np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data


class _Cursor:
    """Hands out a payload piece by piece; a piece beyond the end is `Unsound`."""

    def __init__(self, payload: memoryview, start: int) -> None:
        self._payload = payload
        self._at = start

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes, not copied."""
        start, self._at = self._at, self._at + num_bytes
        _require(self._at <= len(self._payload), "payload shorter than its counts")
        return self._payload[start : self._at]

    def array(self, dtype: "np.dtype[Any]", count: int) -> NDArray[Any]:
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def finish(self) -> None:
        _require(self._at == len(self._payload), "payload longer than its counts")
