"""What forwards take, measured before the first request: the first contents of a `StepTable`.

Else the first rounds of every load would have to find out what a drafted token costs, and would
verify whatever is drafted until they have: four rows whose plain round takes 4 ms had rounds of 25
where arithmetic is dear. DSpark's scheduler (Algorithm 1) profiles its table at start-up as well.

Starts are noisy: other processes load their models meanwhile. So takes of one size are far apart,
and the shortest of them counts.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specserve.models.attention import AttentionBatch
from target_node.batch import ForwardBatch
from target_node.blocks import BlockPool
from target_node.planning.step_table import Cell, Slopes, StepSize, StepTable

log = logging.getLogger(__name__)

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # tokens
_A_ROW = 8  # of them: a block and what stands before it
_TAKES = 3  # of each size; together they count as ...
_ROUNDS = 8  # ... so many rounds
_MOST_S = 1.0  # for one take of each: of a model that takes longer fewer sizes are timed
_MANY_ROWS, _MANY_KEYS = 32, 512  # of the forwards that tell what rows and keys add, ...
_MOST_OF_THESE_S = 0.1  # ... each of which may take so long, ...
_MOST_OF_ONE_S = 0.25  # ... or that of a single token


class _Shape(NamedTuple):
    """A forward to be timed: rows that begin a text each, or stand behind `num_before` tokens."""

    num_tokens: int
    row_tokens: int  # of each row, fewer of the last one
    num_before: int = 0

    @property
    def num_rows(self) -> int:
        return -(-self.num_tokens // self.row_tokens)

    def num_blocks(self, block_size: int) -> int:
        return self.num_rows * -(-(self.row_tokens + self.num_before) // block_size)


def measure(
    table: StepTable,
    forward: Callable[[ForwardBatch], object],
    pool: BlockPool,
    *,
    max_tokens: int,
    max_keys: int = _MANY_KEYS,
    rehearse: bool = False,
) -> None:
    """Fill `table`, which stays empty where the pool or `max_tokens` leave too little room.

    `forward` returns once it has been computed. Blocks of `pool` are borrowed meanwhile.
    `max_keys`: tokens that a row may have. `rehearse`: the first forward of each size makes what
    others of its size need; untimed.
    """
    row_tokens = min(_A_ROW, pool.block_size)
    sizes = table.edges or _SIZES
    room = min(max_tokens, pool.num_free * row_tokens)
    shapes = [_Shape(size, row_tokens) for size in sizes if size <= room]
    if not shapes:
        return
    seconds = _Takes(forward, pool, rehearse=rehearse).of(shapes)
    cells = {shape.num_tokens: Cell(s, _ROUNDS) for shape, s in seconds.items()}
    table.learn(cells, Slopes())
    slopes = _slopes(table, _Takes(forward, pool, rehearse=rehearse), room, max_keys)
    own = {
        tokens: _without_rows(tokens, row_tokens, cell, slopes) for tokens, cell in cells.items()
    }
    table.learn(own, slopes)
    log.debug("seconds of forwards by tokens: %s; %s", own, slopes)


def check(
    table: StepTable,
    forward: Callable[[ForwardBatch], object],
    pool: BlockPool,
    *,
    max_tokens: int,
    rehearse: bool = False,
) -> None:
    """Bring a `table` of an earlier service to the pace of this one, by one forward it knows.

    It may have been measured while others had the machine, or they may have it now.
    """
    row_tokens = min(_A_ROW, pool.block_size)
    room = min(max_tokens, pool.num_free * row_tokens)
    known = [tokens for tokens in table.cells if tokens <= room]
    if not known:
        return
    shape = _Shape(min(known, key=lambda tokens: abs(tokens - row_tokens)), row_tokens)
    takes = _Takes(forward, pool, rehearse=rehearse)
    seconds = min(takes.of([shape])[shape] for _ in range(_TAKES))
    table.keep_pace(StepSize(shape.num_rows, shape.num_tokens, shape.num_tokens), seconds)


def _without_rows(tokens: int, row_tokens: int, cell: Cell, slopes: Slopes) -> Cell:
    added_s = slopes.seconds(_Shape(tokens, row_tokens).num_rows, tokens)
    return cell._replace(seconds=max(0.0, cell.seconds - added_s))


def _slopes(table: StepTable, takes: "_Takes", room: int, max_keys: int) -> Slopes:
    """What a row and a key add, by forwards that differ in nothing else."""
    quick = [tokens for tokens, cell in table.cells.items() if cell.seconds < _MOST_OF_THESE_S]
    size = min(_MANY_ROWS, room, max(quick, default=1), takes.pool.num_free)
    num_before = min(_MANY_KEYS, max_keys - 1, takes.room_for(size))
    is_slow = min(cell.seconds for cell in table.cells.values()) > _MOST_OF_ONE_S
    if is_slow or len(table.cells) < 2 or num_before < takes.pool.block_size:
        return Slopes()
    few, many = _Shape(size, min(_A_ROW, takes.pool.block_size)), _Shape(size, 1)
    long = many._replace(num_before=num_before)
    shapes = list(dict.fromkeys([few, many, long]))
    seconds = takes.of(shapes)
    if len(seconds) < len(shapes):
        return Slopes()
    more_rows = many.num_rows - few.num_rows
    row_s = max(0.0, (seconds[many] - seconds[few]) / more_rows) if more_rows else 0.0
    key_s = max(0.0, (seconds[long] - seconds[many]) / (size * num_before))
    return Slopes(row_s, key_s)


class _Takes:
    """Times forwards."""

    def __init__(
        self, forward: Callable[[ForwardBatch], object], pool: BlockPool, *, rehearse: bool
    ) -> None:
        self.pool = pool
        self._forward = forward
        self._rehearse = rehearse

    def room_for(self, num_rows: int) -> int:
        """Tokens that each of so many rows may have before its own one."""
        return (self.pool.num_free // num_rows) * self.pool.block_size - 1

    def of(self, shapes: list[_Shape]) -> dict[_Shape, float]:
        """The shortest of some takes of each; of the first few alone if all take too long."""
        pool = self.pool
        block_ids = pool.allocate(max(shape.num_blocks(pool.block_size) for shape in shapes))
        found: dict[_Shape, float] = {}
        try:
            # The first of all also makes what all need, and erases the blocks.
            self._forward(_batch(shapes[0], block_ids, pool.take_fresh(), pool.block_size))
            batches = {shape: _batch(shape, block_ids, [], pool.block_size) for shape in shapes}
            if self._rehearse:
                for batch in batches.values():
                    self._forward(batch)
            ends_s = time.perf_counter() + _MOST_S
            for _ in range(_TAKES):
                for shape, batch in batches.items():
                    began_s = time.perf_counter()
                    if shape not in found and began_s > ends_s:
                        break
                    self._forward(batch)
                    seconds = time.perf_counter() - began_s
                    found[shape] = min(seconds, found.get(shape, seconds))
                if len(found) == 1:
                    break  # of no use
        finally:
            pool.release(block_ids)
        return found


def _batch(shape: _Shape, block_ids: list[int], fresh: list[int], block_size: int) -> ForwardBatch:
    """Its rows, in blocks of their own; all tokens want logits."""
    num_rows, size = shape.num_rows, shape.num_tokens
    counts = np.full(num_rows, shape.row_tokens, dtype=np.int64)
    counts[-1] = size - shape.row_tokens * (num_rows - 1)
    a_row = shape.num_blocks(block_size) // num_rows
    tables = np.array(block_ids[: a_row * num_rows], dtype=np.int64).reshape(num_rows, a_row)
    return ForwardBatch(
        token_ids=np.zeros(size, dtype=np.int64),
        logits_index=np.arange(size, dtype=np.int64),
        fresh_blocks=np.array(fresh, dtype=np.int64),
        attention=AttentionBatch(counts, counts + shape.num_before, list(tables)),
    )
