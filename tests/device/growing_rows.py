"""The same batches to a forward that is captured and to one that is not."""

from typing import Any

import numpy as np
import torch

from specserve.backends.cuda.flash import Flash, Library
from specserve.backends.cuda.flash_attention import FlashAttention, FlashGraphs
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.torch.forward import TorchForward
from specserve.models.attention import AttentionBatch
from specserve.models.transformer import Transformer
from tests.backends.cuda.layouts import heads_of

BLOCK, NUM_BLOCKS = 16, 200
TAPS = (-1, 1)


class Rows:
    """Rows that grow, and two forwards over them: plain and captured."""

    def __init__(
        self,
        model: Transformer,
        kv_dtype: torch.dtype,
        graphs: Any,
        library: Library | None = None,
    ) -> None:
        """`library`: flashinfer or what stands in for it, by which the second one attends."""
        sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "deterministic": False}
        plain, behind = (
            TorchForward(model, **sizes, kv_dtype=kv_dtype, num_spare_blocks=spare)
            for spare in (0, 1)
        )
        attention = None
        if library is not None:
            flash = Flash(model.embedding.device, library)
            heads = heads_of(behind.cache, num_heads=len(model.heads.queries))
            behind.attend_by(FlashAttention(flash, behind.cache, heads))
            attention = FlashGraphs(flash, behind.cache, heads)
        self.plain, self.captured = plain, CapturedForward(model, behind, graphs, attention)
        self._device = model.embedding.device
        self._rng = np.random.default_rng(0)
        self._vocab_size = model.config.vocab_size
        blocks = self._rng.permutation(np.arange(1, NUM_BLOCKS))
        self._tables = [blocks[20 * row : 20 * (row + 1)] for row in range(9)]
        self._lengths = np.zeros(9, dtype=np.int64)
        for cache in (plain.cache, behind.cache):  # what nobody may read
            for kept in (cache.keys, cache.values):
                kept.fill_(torch.nan)
                kept[:, :, :BLOCK].zero_()

    def forward(self, taps: tuple[int, ...] = TAPS, **num_tokens: int) -> list[list[torch.Tensor]]:
        """So many new tokens of each row, `r3=2`: hidden states and taps of both."""
        rows = [int(name[1:]) for name in num_tokens]
        counts = np.array(list(num_tokens.values()))
        begun = -(-self._lengths[rows] // BLOCK)
        self._lengths[rows] += counts
        self._erase(rows, begun)
        ends = self._lengths[rows]
        batch = AttentionBatch(counts, ends, [self._tables[row] for row in rows])
        ids = self._rng.integers(0, self._vocab_size, counts.sum())
        token_ids = torch.from_numpy(ids).to(self._device)
        found = []
        for forward in (self.plain, self.captured):
            forward.plan(batch)
            hidden, tapped = forward.run(token_ids, taps)
            found.append([x.cpu() for x in (hidden, *tapped)])
        return found

    def _erase(self, rows: list[int], begun: np.ndarray) -> None:
        """Blocks that a row comes to, behind those `begun`."""
        ends = -(-self._lengths[rows] // BLOCK)
        fresh = [
            self._tables[row][first:end] for row, first, end in zip(rows, begun, ends, strict=True)
        ]
        for forward in (self.plain, self.captured):
            forward.cache.zero_blocks(np.concatenate(fresh))

    def forget(self, row: int, num_tokens: int) -> None:
        """As after a rejection: what is kept there is written again."""
        self._lengths[row] -= num_tokens

    def kept(self) -> list[torch.Tensor]:
        """Keys and values of all rows in the cache of the captured forward, then of the other."""
        used = zip(self._tables, -(-self._lengths // BLOCK), strict=True)
        blocks = torch.from_numpy(np.concatenate([table[:count] for table, count in used]))
        caches = (self.captured.cache, self.plain.cache)
        return [
            torch.cat([x.cpu() for layer in range(2) for x in cache.read(layer, blocks)])
            for cache in caches
        ]


def assert_near(found: list[list[torch.Tensor]], near: float) -> None:
    for plain, captured in zip(*found, strict=True):
        torch.testing.assert_close(captured, plain, atol=near, rtol=near)
