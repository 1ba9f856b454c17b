"""Rows of random queries, keys and values, attended to in any company and in any pieces."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specserve.backends.torch.forward import of_whole_groups
from specserve.models.attention import Attention, AttentionBatch
from specserve.models.dealing import HeadShare, deal_heads
from specserve.models.kv_cache import CacheShape, KVCache

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 4, 32
LENGTHS = (7, 130, 300, 64, 33, 517)  # tokens of each row
Piece = tuple[int, int, int]  # row, first token, end


class Rows:
    """As many tokens as `LENGTHS` has of each; all but those asked for are kept already."""

    def __init__(
        self,
        device: torch.device,
        make: Callable[[KVCache, int], Attention],
        *,
        block_size: int = 16,
        heads: HeadShare | None = None,
        dtype: torch.dtype = torch.float32,
        rounded_to: torch.dtype | None = None,
        query_scale: float = 1.0,
    ) -> None:
        """`heads`: of one rank; None: all of them.

        `rounded_to`: all values are of that dtype, though `dtype` is computed with.
        """
        generator = torch.Generator().manual_seed(0)

        def random(heads: int) -> list[torch.Tensor]:
            of_all = [torch.randn(n, heads, HEAD_DIM, generator=generator) for n in LENGTHS]
            return [x.to(rounded_to or dtype).to(device, dtype) for x in of_all]

        q, k, v = random(NUM_HEADS), random(NUM_KV_HEADS), random(NUM_KV_HEADS)
        heads = heads or deal_heads(NUM_HEADS, NUM_KV_HEADS, 1)[0]
        self._q = [x[:, heads.queries.entries] * query_scale for x in q]
        self._k, self._v = ([x[:, heads.kv.entries] for x in each] for each in (k, v))
        self._tables, taken = [], 1
        for length in LENGTHS:
            count = -(-length // block_size)
            self._tables.append(np.arange(taken, taken + count)[::-1].copy())
            taken += count
        shape = CacheShape(
            num_layers=1,
            num_kv_heads=len(heads.kv),
            head_dim=HEAD_DIM,
            num_blocks=taken,
            block_size=block_size,
        )
        self.cache = KVCache(shape, dtype=dtype, device=device)
        self.attention = of_whole_groups(lambda num_heads: make(self.cache, num_heads), heads)
        self.attend([(row, 0, length) for row, length in enumerate(LENGTHS)])  # keep them all

    def slots(self, row: int, end: int) -> list[int]:
        """Where the first `end` tokens of a row are kept."""
        size, table = self.cache.block_size, self._tables[row]
        return [int(table[i // size]) * size + i % size for i in range(end)]

    def attend(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """One forward of `pieces`: [tokens, heads, head_dim] of each."""
        rows, firsts, ends = (np.array(x) for x in zip(*pieces, strict=True))
        batch = AttentionBatch(ends - firsts, ends, [self._tables[row] for row in rows])
        q, k, v = (
            torch.cat([x[row][first:end] for row, first, end in pieces])
            for x in (self._q, self._k, self._v)
        )
        self.attention.plan(batch)
        found = self.attention.run(0, q, k, v)
        return list(found.split((ends - firsts).tolist()))


def companies() -> list[list[Piece]]:
    """Ways to compute the same tokens."""
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    last = [(row, length - 1, length) for row, length in enumerate(LENGTHS)]
    few = [(row, length - 5, length) for row, length in enumerate(LENGTHS)]
    chunks = [
        [(row, first, min(first + size, LENGTHS[row]))]
        for row, size in ((2, 100), (2, 64), (5, 256), (5, 37))
        for first in range(0, LENGTHS[row], size)
    ]
    return [
        *([piece] for piece in (*whole, *last, *few)),
        last, last[::-1], few, few[2:4], [*last[:3], *whole[3:]], [*few[3:], *whole[:3]],
        [*last, (2, 0, 100)], [(5, 256, 512), *last[:5]],
        *chunks,
    ]  # fmt: skip


def differing(rows: Rows) -> list[list[Piece]]:
    """Companies in which a token has other bits than where all are computed at once."""
    expected = rows.attend([(row, 0, length) for row, length in enumerate(LENGTHS)])
    return [
        pieces
        for pieces in companies()
        if not all(
            torch.equal(found, expected[row][first:end])
            for found, (row, first, end) in zip(rows.attend(pieces), pieces, strict=True)
        )
    ]
