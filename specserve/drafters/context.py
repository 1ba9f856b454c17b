"""Context KV of many rows in one paged pool.

Entries belong to verified tokens, one position each, appended and truncated in order. Knows no
model and no attention: keys and values come in ready to use.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from specserve.errors import Exhausted
from specserve.models.attention import AttentionBatch
from specserve.models.config import ModelSpec
from specserve.models.kv_cache import NULL_BLOCK, CacheShape, KVCache

BLOCK_SIZE = 16  # tokens of a page, which contexts grow by
_MIB = 2**20


@dataclass(frozen=True)
class ContextCapacity:
    """How much the contexts of one drafter hold, in words of the settings that decide it.

    A target's prefix cache lends a block to many rows, and contexts are never shared: a pool that
    is large enough for the target may be too small for its drafter.
    """

    num_tokens: int
    token_bytes: int  # of the target's KV pool, which contexts are as large as
    max_len: int  # tokens that a row may come to have

    def shortage(self, lengths: Collection[int]) -> str:
        """What is too small, and what would do, when rows of `lengths` do not fit together."""
        now, in_the_end = self._memory(lengths), self._memory([self.max_len] * len(lengths))
        return (
            f"{len(lengths)} rows have {sum(lengths)} tokens and draft contexts hold "
            f"{self.num_tokens}; set engine.kv_memory={now} for what they have, {in_the_end} for "
            f"all that they may have (model.max_model_len={self.max_len}), or a lower "
            "engine.max_batch_rows"
        )

    def _memory(self, lengths: Collection[int]) -> str:
        num_tokens = sum(-(-length // BLOCK_SIZE) * BLOCK_SIZE for length in lengths)
        return f"{-(-num_tokens * self.token_bytes // _MIB)}MiB"


class ContextRows:
    """Which pages hold which row's positions. A row exists from its first token to `free`."""

    def __init__(self, num_blocks: int, erase: Callable[[np.ndarray], None] | None = None) -> None:
        """`num_blocks` counts the null block; `erase` is called with pages that a row gets."""
        self._erase = erase
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def length(self, row: int) -> int:
        return self._lengths.get(row, 0)

    def table(self, row: int) -> np.ndarray:
        """The pages of `row` in order, int64."""
        return np.array(self._tables.get(row, ()), dtype=np.int64)

    def append(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]
    ) -> np.ndarray:
        """`reserve`, and the slots of what was reserved, row by row: [sum(counts)] int64."""
        self.reserve(rows, starts, counts)
        spans = zip(rows, starts, counts, strict=True)
        return np.concatenate(
            [self.slots(row, start, start + count) for row, start, count in spans]
        )

    def reserve(self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
        """Places at the rows' ends.

        All or nothing: ValueError where a row does not end at its start, `Exhausted` without pages.
        """
        needed = 0
        for row, start, count in zip(rows, starts, counts, strict=True):
            if start != self.length(row):
                raise ValueError(f"row {row} ends at {self.length(row)}, not at {start}")
            needed += -(-(start + count) // BLOCK_SIZE) - len(self._tables.get(row, ()))
        if len(set(rows)) != len(rows):
            raise ValueError("a row occurs twice in one update")
        if needed > len(self._free):
            raise Exhausted(f"draft context: {needed} pages needed, {len(self._free)} free")
        if needed and self._erase is not None:
            self._erase(np.array(self._free[-needed:]))
        for row, start, count in zip(rows, starts, counts, strict=True):
            table = self._tables.setdefault(row, [])
            while len(table) * BLOCK_SIZE < start + count:
                table.append(self._free.pop())
            self._lengths[row] = start + count

    def unused(self, count: int) -> np.ndarray | None:
        """So many pages that no row has, int64; None: there are fewer.

        What is in them is the caller's until the next `reserve`; rows get them erased.
        """
        return np.array(self._free[:count], dtype=np.int64) if count <= len(self._free) else None

    def slots(self, row: int, start: int, end: int) -> np.ndarray:
        """Where positions start..end-1 are kept: [end - start] int64."""
        positions = np.arange(start, end)
        pages = np.array(self._tables[row], dtype=np.int64)
        return pages[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    def truncate(self, row: int, length: int) -> None:
        """Forget positions from `length` on. ValueError if the row is shorter than that."""
        if not 0 <= length <= self.length(row):
            raise ValueError(f"row {row} has {self.length(row)} positions, not {length}")
        if length == 0:
            self.free(row)
            return
        table, kept = self._tables[row], -(-length // BLOCK_SIZE)
        self._free.extend(reversed(table[kept:]))
        del table[kept:]
        self._lengths[row] = length

    def free(self, row: int) -> None:
        self._free.extend(reversed(self._tables.pop(row, [])))
        self._lengths.pop(row, None)


class ContextCache(Protocol):
    """Pages of all layers."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...

    def write_layers(self, slots: np.ndarray, keys: Tensor, values: Tensor) -> None:
        """Store entries [N, layers, num_kv_heads, head_dim] each."""
        ...

    def read(self, layer: int, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `block_ids`, in order: [num_kv_heads, positions, head_dim] each."""
        ...

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Whatever is in them must not reach a later owner."""
        ...


Cache = TypeVar("Cache", bound=ContextCache)


class Context(Generic[Cache]):
    """`ContextRows` and the keys and values in their pages."""

    def __init__(self, cache: Cache, num_blocks: int) -> None:
        """Rows have the first `num_blocks` of the cache, whose pages are of `BLOCK_SIZE` tokens."""
        self.cache = cache
        # A page outlives its row, and a masked NaN is still one to whoever gets the page next.
        # 10 us for one of 16 tokens, less than to look at what every layer writes.
        self.rows = ContextRows(num_blocks, cache.zero_blocks)

    def write(self, slots: np.ndarray, keys: Tensor, values: Tensor) -> None:
        """Store entries of all layers: keys, values [N, layers * kv_heads, head_dim].

        What is not finite is kept as zeros: a row need not do without drafts for one broken token.
        """
        keys, values = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (keys, values))
        cache = self.cache
        shape = (-1, cache.num_layers, cache.num_kv_heads, cache.head_dim)
        cache.write_layers(slots, keys.view(shape), values.view(shape))

    @torch.inference_mode()
    def read(self, row: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row, each [kv_heads, length, head_dim]; a copy."""
        keys, values = self.cache.read(layer, torch.from_numpy(self.rows.table(row)))
        length = self.rows.length(row)
        return keys[:, :length], values[:, :length]

    def causal_batch(self, rows: Sequence[int], counts: Sequence[int]) -> AttentionBatch:
        """What a forward needs for the rows' last `counts` positions."""
        return AttentionBatch(
            np.array(counts),
            np.array([self.rows.length(row) for row in rows]),
            [self.rows.table(row) for row in rows],
        )


TorchContext = Context[KVCache]


def num_pages(num_tokens: int) -> int:
    """With room for `num_tokens` positions over all rows, the null block included."""
    return -(-num_tokens // BLOCK_SIZE) + 1


def torch_context(
    spec: ModelSpec,
    num_tokens: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    num_spare_pages: int = 0,
) -> TorchContext:
    """An empty one in torch's memory: `num_tokens` positions, over all rows, rounded up.

    `num_spare_pages`: that no row gets, behind all others.
    """
    shape = CacheShape(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_blocks=num_pages(num_tokens),
        block_size=BLOCK_SIZE,
        num_spare_blocks=num_spare_pages,
    )
    cache = KVCache(shape, dtype=dtype, device=device)
    return Context(cache, cache.num_blocks)
