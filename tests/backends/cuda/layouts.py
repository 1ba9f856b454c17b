"""Random batches over paged pools: rows of any length, pages in any order, some of them shared."""

import random
from dataclasses import dataclass

import numpy as np
import torch

from specserve.backends.cuda.flash import Heads
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import CacheShape, KVCache

CPU = torch.device("cpu")
KINDS = ("decode", "verify", "prefill", "mixed")
NUM_BLOCKS = 400


@dataclass(frozen=True)
class Pool:
    """Of one size of pages and heads; whatever is in it is random, but for the null block."""

    cache: KVCache
    ratio: int

    @classmethod
    def of(cls, page_size: int, kv_heads: int, ratio: int, head_dim: int = 4) -> "Pool":
        shape = CacheShape(
            num_layers=1,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            num_blocks=NUM_BLOCKS,
            block_size=page_size,
            num_spare_blocks=NUM_BLOCKS,
        )
        cache = KVCache(shape, dtype=torch.float32, device=CPU)
        generator = torch.Generator().manual_seed(page_size)
        for kept in (cache.keys, cache.values):
            kept.copy_(torch.randn(kept.shape, generator=generator))
            kept[:, :, :page_size] = 0
        return cls(cache, ratio)

    def tokens(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of so many."""
        heads, dim = self.cache.num_kv_heads, self.cache.head_dim
        sizes = [(count, n, dim) for n in (self.ratio * heads, heads, heads)]
        return tuple(torch.randn(size) for size in sizes)


def random_batch(source: random.Random, page_size: int) -> AttentionBatch:
    """Of one of `KINDS`, as a target's forward gets it."""
    kind = source.choice(KINDS)
    counts = []
    for _ in range(source.randint(1, 5)):
        own = source.choice(KINDS[:3]) if kind == "mixed" else kind
        counts.append({"decode": 1, "verify": source.randint(1, 6)}.get(own, source.randint(2, 19)))
    order = list(range(1, NUM_BLOCKS))
    source.shuffle(order)
    shared = [order.pop() for _ in range(source.randint(0, 3))]  # whole pages of a prompt
    ends, tables = [], []
    for count in counts:
        first = shared[: source.randint(0, len(shared))]
        end = len(first) * page_size + count + source.choice([0, source.randrange(40)])
        own = [order.pop() for _ in range(-(-end // page_size) - len(first))]
        # Rows have pages that are not used yet.
        spare = [order.pop() for _ in range(source.randint(0, 1) if len(order) > 80 else 0)]
        ends.append(end)
        tables.append(np.array(first + own + spare))
    return AttentionBatch(np.array(counts), np.array(ends), tables)


def heads_of(cache: KVCache, *, num_heads: int, scale: float | None = None) -> Heads:
    """Of `num_heads` query heads over `cache`. `scale`: of scores; None: head_dim ** -0.5."""
    return Heads(
        num_heads=num_heads,
        num_kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        page_size=cache.block_size,
        dtype=cache.dtype,
        scale=cache.head_dim**-0.5 if scale is None else scale,
    )
