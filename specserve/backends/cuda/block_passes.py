"""Parallel passes of a block drafter, captured once a shape and replayed: see `block_passes`.

Pending tokens are computed by a graph of their own before the blocks. What fits no shape is
run by torch's own operations.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.backends.cuda.context_entries import CapturedEntries
from specserve.backends.cuda.graph_attention import (
    BlockGraphs,
    GraphAttention,
    ShapedAttention,
    ShapedBlocks,
)
from specserve.backends.cuda.graphs import CapturedGraphs
from specserve.backends.cuda.padded_attention import PaddedGraphs
from specserve.backends.cuda.padded_blocks import BlockBatch, PaddedBlockGraphs
from specserve.backends.torch.block_passes import TorchBlockPasses
from specserve.drafters.backbone import Backbone
from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import TorchContext
from specserve.models.attention import AttentionBatch


@dataclass(frozen=True)
class PassAttention:
    """Of a drafter's captured passes, over its contexts."""

    entering: GraphAttention[Any]  # of pending tokens
    blocks: BlockGraphs[Any]

    @classmethod
    def of_torch(cls, backbone: Backbone, plain: TorchBlockPasses) -> "PassAttention":
        context, num_heads = plain.context, backbone.spec.decoder.num_heads
        return cls(
            PaddedGraphs(context.cache, num_heads=num_heads, scale=plain.scale),
            PaddedBlockGraphs(context, num_heads=num_heads, scale=plain.scale),
        )


class CapturedBlockPasses:
    """`TorchBlockPasses`, and a graph of every shape that was met."""

    def __init__(
        self, backbone: Backbone, plain: TorchBlockPasses, attention: PassAttention | None = None
    ) -> None:
        """`attention`: of what is captured; None: torch's."""
        self._backbone = backbone
        self._attention = attention or PassAttention.of_torch(backbone, plain)
        self._plain = plain
        self._entries = CapturedEntries(backbone, plain.context)
        self._entered = CapturedGraphs(self._make_entered)
        self._drafted = CapturedGraphs(self._make_drafted)

    @property
    def context(self) -> TorchContext:
        return self._plain.context

    @property
    def num_graphs(self) -> tuple[int, int]:
        """Of pending tokens, and of blocks."""
        return len(self._entered), len(self._drafted)

    def write_context(
        self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        if not self._entries.keep(features, positions, slots):
            self._plain.write_context(features, positions, slots)

    def enter(self, entering: Entering) -> None:
        batch = self.context.causal_batch(entering.rows, entering.counts)
        shape = self._attention.entering.shape_of(batch)
        made = None
        if shape is not None:
            made = self._entered.run(shape, lambda each: each.fill(batch, entering.token_ids))
        if made is None:
            self._plain.enter(entering)

    def blocks(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        token_ids: Tensor,
        entering: Entering | None,
        gap_ids: Sequence[Sequence[int]] | None = None,
        min_gap: int = 0,
    ) -> Tensor:
        """What it returned is overwritten by the next one."""
        batch = BlockBatch(rows, lengths, gap_ids or [()] * len(rows), token_ids)
        shape = self._attention.blocks.shape_of(batch, min_gap)
        if shape is not None:
            if entering is not None:
                self.enter(entering)
                entering = None
            made = self._drafted.run(shape, lambda each: each.fill(batch))
            if made is not None:
                return made.hidden[: len(rows)]
        return self._plain.blocks(rows, lengths, token_ids, entering, gap_ids, min_gap)

    def _make_entered(self, shape: Hashable) -> "_Entered":
        return _Entered(self._backbone, self._attention.entering.make(shape))

    def _make_drafted(self, shape: Hashable) -> "_Drafted":
        return _Drafted(self._backbone, self._attention.blocks.make(shape))


class _Entered:
    """What is captured of pending tokens: they become entries of their rows' contexts."""

    def __init__(self, backbone: Backbone, attention: ShapedAttention) -> None:
        self._backbone = backbone
        self._attention = attention
        self._token_ids = torch.zeros_like(attention.positions)

    def fill(self, batch: AttentionBatch, token_ids: Sequence[int]) -> None:
        self._attention.fill(batch)
        ids = torch.from_numpy(np.array(token_ids, dtype=np.int64))
        # Not pinned: the copy has left this memory when the call returns.
        ids = ids.to(self._token_ids.device, non_blocking=True)
        torch.index_select(ids, 0, self._attention.sources, out=self._token_ids)

    def __call__(self) -> None:
        self._attention.begin()
        self._backbone.hidden(self._token_ids, self._attention.positions, self._attention)
        self._attention.end()


class _Drafted:
    """What is captured of blocks."""

    def __init__(self, backbone: Backbone, attention: ShapedBlocks) -> None:
        self._backbone = backbone
        self._attention = attention

    def fill(self, batch: BlockBatch) -> None:
        self._attention.fill(batch)

    def __call__(self) -> None:
        token_ids = self._attention.begin()
        found = self._backbone.hidden(token_ids, self._attention.positions, self._attention)
        self._attention.end()
        self.hidden = self._attention.of_blocks(found)  # final states [B, S, H]
