"""What forwards of few tokens take, measured before the first request.

Else the first rounds of every load would have to find out what a drafted token costs, and would
verify whatever is drafted until they have: four rows whose plain round takes 4 ms had rounds of 25
where arithmetic is dear. DSpark's scheduler (Algorithm 1) profiles its table at start-up as well.

Starts are noisy: other processes load their models meanwhile. So takes of one size are far apart,
and what is kept of them is a line for each load.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specserve.models.attention import AttentionBatch
from target_node.batch import ForwardBatch
from target_node.blocks import BlockPool

log = logging.getLogger(__name__)

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens
_A_ROW = 8  # of them: a block and what stands before it
_TAKES = 3  # of each size, of which the shortest counts: others may have had the core
_MOST_S = 0.6  # for one take of each: of a model that takes longer fewer sizes are timed


class Line(NamedTuple):
    """Seconds of a forward of n tokens: fixed_s + n * token_s, from a load's plain rounds on."""

    fixed_s: float
    token_s: float

    def seconds(self, num_tokens: float) -> float:
        return self.fixed_s + num_tokens * self.token_s

    @property
    def turning_point(self) -> float:
        """Tokens that take as long as what every forward takes; infinite where they are free."""
        return max(0.0, self.fixed_s / self.token_s) if self.token_s else np.inf


class ForwardTimes:
    """Of one target; empty until `measure`."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by tokens

    def measure(
        self,
        forward: Callable[[ForwardBatch], object],
        pool: BlockPool,
        *,
        max_tokens: int,
        rehearse: bool = False,
    ) -> None:
        """`forward` returns once it has been computed. Blocks of `pool` are borrowed meanwhile.

        `rehearse`: the first forward of each size makes what others of its size need; untimed.
        """
        row_tokens = min(_A_ROW, pool.block_size)
        room = min(max_tokens, pool.num_free * row_tokens)
        sizes = [size for size in _SIZES if size <= room]
        if not sizes:
            return
        block_ids = pool.allocate(-(-sizes[-1] // row_tokens))
        try:
            # The first of all also makes what all need, and erases the blocks.
            forward(_batch(1, row_tokens, block_ids, pool.take_fresh()))
            batches = {size: _batch(size, row_tokens, block_ids, []) for size in sizes}
            if rehearse:
                for batch in batches.values():
                    forward(batch)
            ends_s = time.perf_counter() + _MOST_S
            for _ in range(_TAKES):
                for size, batch in batches.items():
                    began_s = time.perf_counter()
                    if size not in self._seconds and began_s > ends_s:
                        break
                    forward(batch)
                    seconds = time.perf_counter() - began_s
                    self._seconds[size] = min(seconds, self._seconds.get(size, seconds))
                if len(self._seconds) == 1:
                    break  # of no use
        finally:
            pool.release(block_ids)
        log.debug("seconds of forwards by tokens: %s", self._seconds)

    def line(self, num_rows: int) -> Line | None:
        """Through rounds of so many rows, with up to a block each; None where too few were timed.

        A forward takes no longer than one of more tokens: what seems to was held up.
        """
        sizes = [size for size in self._seconds if num_rows <= size <= _A_ROW * num_rows]
        if len(sizes) < 2:
            return None
        seconds = [min(s for n, s in self._seconds.items() if n >= size) for size in sizes]
        token_s, fixed_s = np.polyfit(sizes, seconds, 1)
        if fixed_s < 0:  # a bend upwards; a plain round takes what it took all the same
            fixed_s = seconds[0] - token_s * sizes[0]
        return Line(float(fixed_s), max(0.0, float(token_s)))


def _batch(size: int, row_tokens: int, block_ids: list[int], fresh: list[int]) -> ForwardBatch:
    """Rows of `row_tokens` tokens that begin a text each, the last one shorter; all want logits."""
    num_rows = -(-size // row_tokens)
    counts = np.full(num_rows, row_tokens, dtype=np.int64)
    counts[-1] = size - row_tokens * (num_rows - 1)
    return ForwardBatch(
        token_ids=np.zeros(size, dtype=np.int64),
        logits_index=np.arange(size, dtype=np.int64),
        fresh_blocks=np.array(fresh, dtype=np.int64),
        attention=AttentionBatch(
            counts, counts, [np.array([block]) for block in block_ids[:num_rows]]
        ),
    )
