"""What forwards of few tokens take, measured before the first request.

Else the first rounds of every load would have to find out what a drafted token costs, and would
verify whatever is drafted until they have: four rows whose plain round takes 4 ms had rounds of 25
where arithmetic is dear. DSpark's scheduler (Algorithm 1) profiles its table at start-up as well.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from specserve.model.attention import AttentionBatch
from target_node.batch import ForwardBatch
from target_node.blocks import BlockPool

log = logging.getLogger(__name__)

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens
_A_ROW = 8  # of them: a block and what stands before it
_TAKES = 3  # of which the shortest counts: others may have had the core
_MOST_S = 1.0  # for all sizes: of a model that takes longer less is known beforehand


class ForwardTimes:
    """Seconds a forward, by its tokens; empty until `measure`."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def measure(
        self, forward: Callable[[ForwardBatch], object], pool: BlockPool, *, max_tokens: int
    ) -> None:
        """`forward` returns once it has been computed. Blocks of `pool` are borrowed meanwhile."""
        taken_s, row_tokens = 0.0, min(_A_ROW, pool.block_size)
        for size in _SIZES:
            num_rows = -(-size // row_tokens)
            if size > max_tokens or num_rows > pool.num_free or taken_s > _MOST_S:
                break
            block_ids = pool.allocate(num_rows)
            try:
                batch = _batch(size, row_tokens, block_ids, pool.take_fresh())
                seconds = _shortest(forward, batch)
            finally:
                pool.release(block_ids)
            self._seconds[size] = seconds
            taken_s += _TAKES * seconds  # without what held them up
        log.debug("seconds of forwards by tokens: %s", self._seconds)

    def of(self, num_rows: int) -> Sequence[tuple[int, float]]:
        """Tokens and seconds of rounds of so many rows, the fewest first."""
        most = num_rows * _A_ROW
        return [(size, s) for size, s in self._seconds.items() if num_rows <= size <= most]


def _shortest(forward: Callable[[ForwardBatch], object], batch: ForwardBatch) -> float:
    """Of a few takes in seconds; of one where that takes long by itself."""
    shortest_s = math.inf
    for _ in range(_TAKES):
        began_s = time.perf_counter()
        forward(batch)
        shortest_s = min(shortest_s, time.perf_counter() - began_s)
        if shortest_s > _MOST_S:
            break
    return shortest_s


def _batch(size: int, row_tokens: int, block_ids: list[int], fresh: list[int]) -> ForwardBatch:
    """Rows of `row_tokens` tokens that begin a text each, the last one shorter; all want logits."""
    counts = np.full(len(block_ids), row_tokens, dtype=np.int64)
    counts[-1] = size - row_tokens * (len(block_ids) - 1)
    return ForwardBatch(
        token_ids=np.zeros(size, dtype=np.int64),
        logits_index=np.arange(size, dtype=np.int64),
        fresh_blocks=np.array(fresh, dtype=np.int64),
        attention=AttentionBatch(counts, counts, [np.array([block]) for block in block_ids]),
    )
