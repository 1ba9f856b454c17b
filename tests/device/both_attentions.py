"""flashinfer's attention and torch's, over pools with the same in them: captured and not.

With a stand-in on a pretended device in tests/device, with the real one on a real device in
tests/gpu.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specserve.backends.cuda.flash import Flash, Library
from specserve.backends.cuda.flash_attention import FlashAttention, FlashGraphs
from specserve.backends.cuda.flash_blocks import SPARE_PAGES, FlashBlockGraphs
from specserve.backends.cuda.graphs import CapturedGraphs
from specserve.backends.cuda.padded_blocks import BlockBatch
from specserve.backends.torch.attention import TorchAttention
from specserve.drafters.branch_attention import Blocks, BranchAttention
from specserve.drafters.context import BLOCK_SIZE, Context, TorchContext
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import CacheShape, KVCache
from tests.backends.cuda.layouts import NUM_BLOCKS, heads_of, random_batch


class Sizes(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Place:
    """Where, in what, by whom."""

    device: torch.device
    dtype: torch.dtype
    library: Library
    sizes: Sizes

    def cache(self, num_spare_blocks: int) -> KVCache:
        """Always with the same in it."""
        shape = CacheShape(
            num_layers=1,
            num_kv_heads=self.sizes.num_kv_heads,
            head_dim=self.sizes.head_dim,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            num_spare_blocks=num_spare_blocks,
        )
        cache = KVCache(shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator().manual_seed(5)
        size = (self.sizes.num_kv_heads, (NUM_BLOCKS - 1) * BLOCK_SIZE, self.sizes.head_dim)
        first, end = BLOCK_SIZE, NUM_BLOCKS * BLOCK_SIZE
        for kept in (cache.keys, cache.values):
            numbers = torch.randn(size, generator=generator).to(self.device, self.dtype)
            kept[0, :, first:end].copy_(numbers)
        return cache

    def tokens(self, count: int) -> tuple[Tensor, ...]:
        """Queries, keys and values of so many."""
        heads = (self.sizes.num_heads, self.sizes.num_kv_heads, self.sizes.num_kv_heads)
        sizes = [(count, n, self.sizes.head_dim) for n in heads]
        return tuple(torch.randn(size).to(self.device, self.dtype) for size in sizes)


class _Layer:
    """What is captured: attention of one shape, over queries, keys and values of so many tokens."""

    def __init__(self, attention: Any, place: Place) -> None:
        self.attention = attention
        self._tokens = place.tokens(attention.shape.num_tokens)

    def fill(self, batch: Any, tokens: tuple[Tensor, ...]) -> None:
        self.attention.fill(batch)
        for own, given in zip(self._tokens, tokens, strict=True):
            own[: len(given)].copy_(given)

    def __call__(self) -> None:
        self.attention.begin()
        self.found = self.attention.run(0, *self._tokens)
        self.attention.end()


def random_batches(count: int) -> list[AttentionBatch]:
    source = random.Random(11)
    return [random_batch(source, BLOCK_SIZE) for _ in range(count)]


def compare_batches(place: Place, batches: Sequence[AttentionBatch]) -> None:
    """Of a target's forwards."""
    num_heads = place.sizes.num_heads
    flash, cache, plain_cache = Flash(place.device, place.library), place.cache(1), place.cache(0)
    heads = heads_of(cache, num_heads=num_heads)
    plain = TorchAttention(plain_cache, num_heads=num_heads, deterministic=False)
    eager, graphs = FlashAttention(flash, cache, heads), FlashGraphs(flash, cache, heads)
    captured = CapturedGraphs(lambda shape: _Layer(graphs.make(shape), place))
    for batch in batches:
        tokens = place.tokens(int(batch.num_tokens.sum()))
        plain.plan(batch)
        expected = plain.run(0, *tokens).cpu()
        eager.plan(batch)
        near(eager.run(0, *tokens).cpu(), expected, place)
        found = _run(captured, graphs.shape_of(batch), batch, tokens)
        near(found.attention.unpadded(found.found).cpu(), expected, place)
    pages = slice(0, NUM_BLOCKS * BLOCK_SIZE)
    for ours, theirs in ((cache.keys, plain_cache.keys), (cache.values, plain_cache.values)):
        assert torch.equal(ours[:, :, pages].cpu(), theirs.cpu())  # zeros of the null block, too
    assert len(captured) < len(batches)  # some shapes were met again


def compare_blocks_of(place: Place, num_batches: int) -> None:
    """Of a drafter's blocks, behind gaps and without, of branches that share trunks or do not."""
    source, num_heads = random.Random(12), place.sizes.num_heads
    flash = Flash(place.device, place.library)
    contexts = [_context(place, spare) for spare in (SPARE_PAGES, 0)]
    heads = heads_of(contexts[0].cache, num_heads=num_heads, scale=0.2)
    graphs = FlashBlockGraphs(flash, contexts[0], heads)
    plain = BranchAttention(contexts[1], num_heads=num_heads, scale=0.2)
    captured = CapturedGraphs(lambda shape: _Layer(graphs.make(shape), place))
    for _ in range(num_batches):
        rows = sorted(source.choices(range(3), k=source.randint(1, 9)))
        lengths = [source.choice([contexts[0].rows.length(row), 7]) for row in rows]
        gap, size = source.choice([0, 0, 3]), 5
        ids = torch.zeros(len(rows), size, dtype=torch.int64, device=place.device)
        batch = BlockBatch(rows, lengths, [list(range(gap))] * len(rows), ids)
        tokens = place.tokens(len(rows) * (gap + size))
        places = torch.arange(gap + size)
        hidden = (places > places[:, None]) & (places < gap)[:, None]
        mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).expand(len(rows), -1, -1)
        plain.plan(Blocks(rows, lengths, gap + size, mask))
        expected = plain.run(0, *tokens).unflatten(0, (len(rows), -1))[:, gap:]
        found = _run(captured, graphs.shape_of(batch, 0), batch, tokens)
        ours = found.attention.of_blocks(found.found.flatten(1))[: len(rows)]
        near(ours.cpu(), expected.flatten(2).cpu(), place)
    assert 1 < len(captured) < num_batches
    pages = slice(0, NUM_BLOCKS * BLOCK_SIZE)  # own keys are behind all of them
    caches = [context.cache for context in contexts]
    assert torch.equal(*(cache.keys[:, :, pages].cpu() for cache in caches))


def _context(place: Place, num_spare_pages: int) -> TorchContext:
    """Of three rows."""
    context = Context(place.cache(num_spare_pages), NUM_BLOCKS)
    # Their pages are full already: whoever gets them finds what is in the pool.
    context.rows._erase = None
    context.rows.reserve([0, 1, 2], [0, 0, 0], [40, 16, 131])
    return context


def _run(
    captured: CapturedGraphs, shape: Hashable, batch: Any, tokens: tuple[Tensor, ...]
) -> _Layer:
    assert shape is not None
    fill: Callable[[_Layer], None] = lambda each: each.fill(batch, tokens)  # noqa: E731
    found = captured.run(shape, fill)
    assert found is not None
    return found


def near(ours: Tensor, theirs: Tensor, place: Place) -> None:
    """Means of values of size 1, in the dtype's bits."""
    error = 1e-4 if place.dtype is torch.float32 else 0.04
    torch.testing.assert_close(ours.float(), theirs.float(), atol=error, rtol=error)
