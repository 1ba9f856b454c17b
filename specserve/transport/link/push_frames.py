# pyright: strict
"""Pushes as bytes of fixed layout, and back, with every field in its range.

    blocks, width G, confidences (0 or 1) and distribution entries M, u32 each; float64 seconds of
    the draft batch; a record a block; int32 tokens [B, G]; float32 confidences [B, G];
    for a device: int32 distribution ids, float32 probs [B, G, M]

Tokens and confidences behind a block's length are padding and must be in range too; zeros do.
Distributions are checked for their shape alone, since `DraftProbs.sound` checks the form of those
that are used.
"""

import struct
from typing import NamedTuple

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
from specserve.transport.link.messages import BlockKey, Push

_COUNTS = struct.Struct("<IIIId")
_MOST_BATCH_S = 3600.0
_BLOCK = struct.Struct("<qqiiii")

Column = tuple[int, ...]


class _Blocks(NamedTuple):
    """The records of all blocks, column by column."""

    streams: Column
    speculation_ids: Column
    rounds: Column
    positions: Column
    anchor_ids: Column
    lengths: Column


_NO_BLOCKS = _Blocks((), (), (), (), (), ())


def encode_push(push: Push, epoch: int, sequence: int) -> Encoded:
    """The frame, which aliases the push's arrays until it is written."""
    width, num_kept = push.token_ids.shape[1], push.kept_ids.shape[2]
    has_confidences = push.confidences.shape[1] > 0
    counts = (len(push.keys), width, has_confidences, num_kept)
    parts: list[Part] = [_COUNTS.pack(*counts, push.draft_batch_s)]
    fields = zip(push.keys, push.speculation_ids, push.lengths, strict=True)
    parts += [
        _BLOCK.pack(key.stream, speculation_id, key.round, key.position, key.anchor_id, length)
        for key, speculation_id, length in fields
    ]
    parts += (flat(push.token_ids, TOKEN), flat(push.confidences, FLOAT))
    kept = split([(push.kept_ids, TOKEN), (push.kept_probs, FLOAT)])
    return Encoded(seal(Kind.PUSH, epoch, sequence, parts + kept.parts), kept.device_part)


def unpack_push(payload: memoryview, limits: LinkLimits, entries: Entries | None = None) -> Push:
    """The push in an unsealed payload; `entries`: its device part, where that came beside it.

    Raises:
        Unsound: a length or a field out of range.
    """
    require(len(payload) >= _COUNTS.size, "payload shorter than its counts")
    num_blocks, width, has_confidences, num_kept, draft_batch_s = _COUNTS.unpack_from(payload)
    require(num_blocks <= limits.max_blocks, "too many blocks")
    require(1 <= width <= limits.gamma, "block width out of range")
    require(has_confidences <= 1, "neither with nor without confidences")
    require(num_kept <= limits.max_kept, "too many distribution entries")
    require(0 <= draft_batch_s <= _MOST_BATCH_S, "seconds out of range")
    cursor = Cursor(payload, _COUNTS.size)
    records = _BLOCK.iter_unpack(cursor.take(num_blocks * _BLOCK.size))
    blocks = _Blocks(*zip(*records, strict=True)) if num_blocks else _NO_BLOCKS
    _check_blocks(blocks, width, limits)
    num_tokens = num_blocks * width
    tokens = cursor.array(TOKEN, num_tokens)
    confidences = cursor.array(FLOAT, num_tokens * has_confidences)
    entries = entries or HostEntries(cursor)
    kept_ids = entries.ids(num_tokens * num_kept)
    kept_probs = entries.numbers(num_tokens * num_kept)
    entries.finish()
    cursor.finish()
    check_tokens(tokens, limits)
    check_confidences(confidences)
    return Push(
        keys=list(
            map(BlockKey, blocks.streams, blocks.rounds, blocks.positions, blocks.anchor_ids)
        ),
        speculation_ids=list(blocks.speculation_ids),
        lengths=list(blocks.lengths),
        token_ids=tokens.reshape(num_blocks, width),
        confidences=confidences.reshape(num_blocks, width * has_confidences),
        kept_ids=kept_ids.reshape(num_blocks, width, num_kept),
        kept_probs=kept_probs.reshape(num_blocks, width, num_kept),
        draft_batch_s=draft_batch_s,
    )


def _check_blocks(blocks: _Blocks, width: int, limits: LinkLimits) -> None:
    """Column by column: a round's pushes hold hundreds of blocks."""
    for column, low, high, problem in (
        (blocks.streams, 0, None, "negative identity"),
        (blocks.speculation_ids, 1, None, "speculation id out of range"),
        (blocks.rounds, 0, MAX_ROUND, "round out of range"),
        (blocks.positions, 0, limits.max_positions - 1, "out of context"),
        (blocks.anchor_ids, 0, limits.vocab_size - 1, "token id out of range"),
        (blocks.lengths, 1, width, "block length out of range"),
    ):
        require(min(column, default=low) >= low, problem)
        require(high is None or max(column, default=high) <= high, problem)
