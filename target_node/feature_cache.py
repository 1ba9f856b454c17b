"""Projected context features beside the KV cache: what a drafter reads of every verified token.

One vector c_p a position, in the slot of the position's KV: so a prompt served by the prefix cache
has its features too, and both are forgotten together. Knows slots, not who owns a block.
"""

import numpy as np
import torch
from torch import Tensor

from specserve.drafting import FeatureSpec
from specserve.model.attention import AttentionBatch


class FeatureCache:
    """c_p of every slot: [num_blocks * block_size, H]."""

    def __init__(
        self,
        spec: FeatureSpec,
        *,
        feature_size: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.size = feature_size
        self.block_size = block_size
        self._rows = torch.zeros(num_blocks * block_size, feature_size, dtype=dtype, device=device)

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose residuals `write` wants, in this order."""
        return self.spec.layers

    def write(self, batch: AttentionBatch, residuals: list[Tensor]) -> None:
        """Project and keep the residuals, each [N, H], of the N new tokens of a forward."""
        slots = batch.slots(self.block_size)
        features = self.spec.project(torch.cat(residuals, dim=-1))
        index = torch.from_numpy(slots).to(self._rows.device)
        self._rows.index_copy_(0, index, features.to(self._rows.dtype))

    def read(self, block_ids: list[int], start: int, end: int) -> Tensor:
        """Features of positions start..end - 1 of the row with these blocks: [end - start, H]."""
        positions = np.arange(start, end)
        slots = np.asarray(block_ids, dtype=np.int64)[positions // self.block_size]
        slots = slots * self.block_size + positions % self.block_size
        return self._rows.index_select(0, torch.from_numpy(slots).to(self._rows.device))
