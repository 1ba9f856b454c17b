"""Parallel passes of a block drafter by its own layers: see `specserve.drafters.block_passes`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.backends.torch.attention import TorchAttention
from specserve.drafters.backbone import Backbone
from specserve.drafters.branch_attention import Blocks, BranchAttention, Entering
from specserve.drafters.chain_passes import entering_tokens
from specserve.drafters.context import TorchContext
from specserve.drafters.spec import BlockSpec


class TorchBlockPasses:
    """The target's own layers, with attention of branches: on any device, in any dtype."""

    def __init__(self, backbone: Backbone, context: TorchContext) -> None:
        spec = backbone.spec
        self.context = context
        self._backbone = backbone
        self.scale = score_scale(spec)
        num_heads = spec.decoder.num_heads
        self._attention = BranchAttention(context, num_heads=num_heads, scale=self.scale)
        self._causal = TorchAttention(context.cache, num_heads=num_heads, deterministic=False)
        self._causal.scale = self.scale
        self._device = backbone.embedding.device

    def write_context(
        self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        places = torch.from_numpy(positions).to(self._device)
        self.context.write(slots, *self._backbone.context_entries(features, places))

    def enter(self, entering: Entering) -> None:
        token_ids, positions = entering_tokens(entering, self._device)
        self._causal.plan(self.context.causal_batch(entering.rows, entering.counts))
        self._backbone.hidden(token_ids, positions, self._causal)

    def blocks(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        token_ids: Tensor,
        entering: Entering | None,
        gap_ids: Sequence[Sequence[int]] | None = None,
        min_gap: int = 0,
    ) -> Tensor:
        num_blocks, size = token_ids.shape
        gap_ids = gap_ids or [()] * num_blocks
        gap = max(min_gap, *map(len, gap_ids))
        firsts = [length + len(ids) for length, ids in zip(lengths, gap_ids, strict=True)]
        positions = torch.tensor(firsts, device=self._device)[:, None] + torch.arange(
            size, device=self._device
        )
        mask = None
        if gap:
            token_ids, positions, mask = _with_gaps(gap_ids, token_ids, positions, gap)
        shape = token_ids.shape
        token_ids, positions = token_ids.flatten(), positions.flatten()
        if entering is not None:
            first_ids, first_positions = entering_tokens(entering, self._device)
            token_ids = torch.cat([first_ids, token_ids])
            positions = torch.cat([first_positions, positions])
        self._attention.plan(Blocks(rows, lengths, shape[1], mask), entering)
        hidden = self._backbone.hidden(token_ids, positions, self._attention)
        return hidden[len(token_ids) - shape.numel() :].view(*shape, -1)[:, gap:]


def score_scale(spec: BlockSpec) -> float:
    return 1.0 if spec.gemma4 is not None else spec.decoder.head_dim**-0.5


def _with_gaps(
    gap_ids: Sequence[Sequence[int]], token_ids: Tensor, positions: Tensor, gap: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of the gaps before each block, and who sees whom: [B, T], [B, T], [B, T, T].

    Shorter gaps are padded on the left with tokens that only they themselves see.
    """
    device, size = token_ids.device, gap + token_ids.shape[1]
    padded = [[0] * (gap - len(ids)) + list(ids) for ids in gap_ids]
    before = positions[:, :1] - torch.arange(gap, 0, -1, device=device)
    pads = torch.tensor([gap - len(ids) for ids in gap_ids], device=device)
    places = torch.arange(size, device=device)
    visible = (places[None, :] <= places[:, None]) | (places >= gap)[:, None]
    visible = visible & (places >= pads[:, None])[:, None, :]
    visible = visible | torch.eye(size, dtype=torch.bool, device=device)
    mask = torch.zeros(visible.shape, device=device).masked_fill_(~visible, -torch.inf)
    token_ids = torch.cat([torch.tensor(padded, device=device), token_ids], dim=1)
    return token_ids, torch.cat([before.clamp(min=0), positions], dim=1), mask
