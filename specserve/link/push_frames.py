# pyright: strict
"""Pushes as bytes of fixed layout, and back, with every field in its range.

    blocks, width G, confidences (0 or 1) and law entries M, u32 each; float64 seconds of the wave;
    a record a block;
    int32 tokens [B, G]; float32 confidences [B, G]; int32 law ids, float32 probs [B, G, M]

Tokens and confidences behind a block's length are padding and must be in range too; zeros do.
Laws are checked for their shape alone, since `DraftLaw.sound` judges the form of those that are
used.
"""

import struct
from typing import NamedTuple

from specserve.link.envelope import Kind, Part, seal
from specserve.link.frames import (
    FLOAT,
    MAX_ROUND,
    TOKEN,
    Cursor,
    LinkLimits,
    check_confidences,
    check_tokens,
    flat,
    require,
)
from specserve.link.messages import BlockKey, Push

_COUNTS = struct.Struct("<IIIId")
_MOST_WAVE_S = 3600.0
_BLOCK = struct.Struct("<qqiiii")


class _Block(NamedTuple):
    """The record of a block."""

    stream: int
    speculation_id: int
    round: int
    position: int
    anchor_id: int
    length: int


def encode_push(push: Push, epoch: int, sequence: int) -> list[Part]:
    """The frame in parts; they alias the push's arrays until they are written."""
    width, num_kept = push.token_ids.shape[1], push.law_ids.shape[2]
    has_confidences = push.confidences.shape[1] > 0
    counts = (len(push.keys), width, has_confidences, num_kept)
    parts: list[Part] = [_COUNTS.pack(*counts, push.wave_s)]
    fields = zip(push.keys, push.speculation_ids, push.lengths, strict=True)
    parts += [
        _BLOCK.pack(key.stream, speculation_id, key.round, key.position, key.anchor_id, length)
        for key, speculation_id, length in fields
    ]
    parts += (
        flat(push.token_ids, TOKEN),
        flat(push.confidences, FLOAT),
        flat(push.law_ids, TOKEN),
        flat(push.law_probs, FLOAT),
    )
    return seal(Kind.PUSH, epoch, sequence, parts)


def unpack_push(payload: memoryview, limits: LinkLimits) -> Push:
    """The push in an unsealed payload.

    Raises:
        Unsound: a length or a field out of range.
    """
    require(len(payload) >= _COUNTS.size, "payload shorter than its counts")
    num_blocks, width, has_confidences, num_kept, wave_s = _COUNTS.unpack_from(payload)
    require(num_blocks <= limits.max_blocks, "too many blocks")
    require(1 <= width <= limits.gamma, "block width out of range")
    require(has_confidences <= 1, "neither with nor without confidences")
    require(num_kept <= limits.max_kept, "too many law entries")
    require(0 <= wave_s <= _MOST_WAVE_S, "seconds out of range")
    cursor = Cursor(payload, _COUNTS.size)
    records = [_Block._make(b) for b in _BLOCK.iter_unpack(cursor.take(num_blocks * _BLOCK.size))]
    for record in records:
        _check_block(record, width, limits)
    num_tokens = num_blocks * width
    tokens = cursor.array(TOKEN, num_tokens)
    confidences = cursor.array(FLOAT, num_tokens * has_confidences)
    law_ids = cursor.array(TOKEN, num_tokens * num_kept)
    law_probs = cursor.array(FLOAT, num_tokens * num_kept)
    cursor.finish()
    check_tokens(tokens, limits)
    check_confidences(confidences)
    return Push(
        keys=[BlockKey(r.stream, r.round, r.position, r.anchor_id) for r in records],
        speculation_ids=[record.speculation_id for record in records],
        lengths=[record.length for record in records],
        token_ids=tokens.reshape(num_blocks, width),
        confidences=confidences.reshape(num_blocks, width * has_confidences),
        law_ids=law_ids.reshape(num_blocks, width, num_kept),
        law_probs=law_probs.reshape(num_blocks, width, num_kept),
        wave_s=wave_s,
    )


def _check_block(block: _Block, width: int, limits: LinkLimits) -> None:
    require(block.stream >= 0, "negative identity")
    require(block.speculation_id > 0, "speculation id out of range")
    require(0 <= block.round <= MAX_ROUND, "round out of range")
    require(0 <= block.position < limits.max_positions, "out of context")
    require(0 <= block.anchor_id < limits.vocab_size, "token id out of range")
    require(1 <= block.length <= width, "block length out of range")
