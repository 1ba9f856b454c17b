"""Draft logits under a request's own fields, compiled: see `specserve.decoding.shaping`.

By torch a row is twenty small operations, three times what a step of a chain of a small model
takes, and most services cut every request by default. Arrays are contiguous, and no index is
checked here: who calls knows that listed tokens are of the vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from specserve import compiled
from specserve.decoding.race import Fields
from specserve.decoding.truncation_kernels import keep_possible
from specserve.noise_kernel import is_bad, largest

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept encloses it."""
    return compiled.compiled(function, is_kept=False)


class ShapingRoom(NamedTuple):
    """For one row; of no tokens where nobody has such fields."""

    row: np.ndarray  # float32 [V]
    scaled: np.ndarray  # float32 [V]
    weights: np.ndarray  # float32 [V]
    ids: np.ndarray  # int64 [V]


@_compiled
def room_for(num_tokens: int, fields: Fields) -> ShapingRoom:
    size = num_tokens if len(fields.temperatures) else 0
    floats = np.empty((3, size), np.float32)
    return ShapingRoom(floats[0], floats[1], floats[2], np.empty(size, np.int64))


@_compiled
def _penalised(logit: np.float32, count: float, penalties: np.ndarray) -> np.float32:
    """See `specserve.decoding.logit_edits`; penalties: repetition, frequency and presence."""
    repeated = logit / penalties[0] if logit > np.float32(0) else logit * penalties[0]
    present = penalties[2] if count > 0 else 0.0
    return np.float32(repeated - penalties[1] * count - present)


@_compiled
def _penalise(
    row: np.ndarray, logits: np.ndarray, block: int, drafted: np.ndarray, fields: Fields
) -> None:
    """drafted int64 [S] are the block's tokens so far."""
    penalties, seen = fields.penalties[block], fields.seen
    start, end = seen.starts[block], seen.starts[block + 1]
    for k in range(start, end):
        token = seen.ids[k]
        row[token] = _penalised(logits[token], seen.values[k], penalties)  # pyright: ignore[reportArgumentType]
    for token in drafted:
        count = 0.0
        for k in range(start, end):
            if seen.ids[k] == token:
                count += seen.values[k]
        for other in drafted:
            count += other == token
        row[token] = _penalised(logits[token], count, penalties)  # pyright: ignore[reportArgumentType]


@_compiled
def _cut(row: np.ndarray, block: int, fields: Fields, room: ShapingRoom) -> None:
    """Minus infinity for what the target would not draw of these logits."""
    most, temperature, cut = largest(row), fields.temperatures[block], fields.cuts[block]
    if is_bad(row, most):
        return
    for token in range(len(row)):
        room.scaled[token] = (row[token] - most) / temperature + np.float32(0)  # no -0.0
    keep_possible(room.scaled, int(cut[0]), cut[1], cut[2], room.weights, room.ids)
    for token in range(len(row)):
        if not room.weights[token] > np.float32(0):
            row[token] = -np.float32(np.inf)


@_compiled
def shaped_row(
    logits: np.ndarray, block: int, drafted: np.ndarray, fields: Fields, room: ShapingRoom
) -> np.ndarray:
    """What the next token of `block` is drawn from, [V]: in `room`, `logits` stay as they are.

    drafted int64 [S] are the block's tokens so far, of S slots.
    """
    row, penalties, cut = room.row, fields.penalties[block], fields.cuts[block]
    row[:] = logits
    if penalties[0] != 1 or penalties[1] != 0 or penalties[2] != 0:
        _penalise(row, logits, block, drafted, fields)
    for k in range(fields.bias.starts[block], fields.bias.starts[block + 1]):
        row[fields.bias.ids[k]] += np.float32(fields.bias.values[k])
    for k in range(fields.held.starts[block], fields.held.starts[block + 1]):
        if len(drafted) < fields.held.values[k]:
            row[fields.held.ids[k]] = -np.float32(np.inf)
    if cut[0] > 0 or cut[1] < 1 or cut[2] > 0:
        _cut(row, block, fields, room)
    return row
