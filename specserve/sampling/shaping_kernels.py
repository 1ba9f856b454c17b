"""Draft logits under a request's own fields, compiled: see `specserve.sampling.shaping`.

By torch a row is twenty small operations, three times what a step of a chain of a small model
takes, and most services cut every request by default. Arrays are contiguous, and no index is
checked here: who calls knows that listed tokens are of the vocabulary.

All tokens are looked at, whatever the logits: how late a draft of the rejection family is must not
depend on what it drew.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.noise_kernel import is_bad, largest
from specserve.sampling.race import Fields
from specserve.sampling.ranks import boundary, boundary_of_mass, orders_of
from specserve.sampling.truncation_kernels import unit_of, weight_of

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept encloses it."""
    return compiled.compiled(function, is_kept=False)


class ShapingRoom(NamedTuple):
    """Of nothing where nobody has such fields."""

    rows: np.ndarray  # float32 [B, V], what a slot's tokens are drawn from
    scaled: np.ndarray  # float32 [V]
    weights: np.ndarray  # float32 [V]
    orders: np.ndarray  # int64 [V]
    masses: np.ndarray  # int64 [V]


@_compiled
def room_for(num_tokens: int, fields: Fields) -> ShapingRoom:
    num_blocks = len(fields.temperatures)
    size = num_tokens if num_blocks else 0
    rows, floats = np.empty((num_blocks, size), np.float32), np.empty((2, size), np.float32)
    integers = np.empty((2, size), np.int64)
    return ShapingRoom(rows, floats[0], floats[1], integers[0], integers[1])


@_compiled
def _penalised(logit: np.float32, count: float, penalties: np.ndarray) -> np.float32:
    """See `specserve.sampling.logit_edits`; penalties: repetition, frequency and presence."""
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
    """Minus infinity for what the target would not draw: see `specserve.sampling.truncation`."""
    most, temperature, cut = largest(row), fields.temperatures[block], fields.cuts[block]
    if is_bad(row, most):
        return
    num_tokens, top_k, least, total = len(row), int(cut[0]), np.int64(0), np.int64(0)
    unit, floor = unit_of(num_tokens), np.float32(cut[2])
    for token in range(num_tokens):
        room.scaled[token] = (row[token] - most) / temperature + np.float32(0)  # no -0.0
        room.weights[token] = weight_of(room.scaled[token])  # pyright: ignore[reportArgumentType]
    orders_of(room.scaled, room.orders)
    if 0 < top_k < num_tokens:
        least = boundary(room.orders, top_k)[0]
    if cut[1] < 1:
        for token in range(num_tokens):
            mass = np.int64(room.weights[token] * unit)
            room.masses[token] = mass if room.orders[token] >= least else 0
            total += room.masses[token]
        least = boundary_of_mass(room.orders, room.masses, np.float64(total) * cut[1])
    for token in range(num_tokens):
        weight = room.weights[token]
        if room.orders[token] < least or weight < floor or weight == np.float32(0):
            row[token] = -np.float32(np.inf)


@_compiled
def shaped_row(
    logits: np.ndarray, block: int, drafted: np.ndarray, fields: Fields, room: ShapingRoom
) -> np.ndarray:
    """What the next token of `block` is drawn from, [V]: in `room`, `logits` stay as they are.

    drafted int64 [S] are the block's tokens so far, of S slots.
    """
    row, penalties, cut = room.rows[block], fields.penalties[block], fields.cuts[block]
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
