"""Projected context features beside the KV cache: what a drafter reads of every verified token.

One vector c_p a position, in the slot of the position's KV: so a prompt served by the prefix cache
has its features too, and both are forgotten together. Knows slots, not who owns a block.

Residuals wait a little before they are projected: many tokens at once take hardly longer than one,
and in rounds that decode plainly nobody reads them. (A projection in every plain round took a tenth
of it, with a target of 135M parameters on one core.)
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specserve.drafters.protocol import FeatureSpec
from specserve.models.attention import AttentionBatch

_MOST_WAITING = 64  # tokens

Span = tuple[list[int], int, int]  # positions start .. end - 1 of the row with these blocks


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
        is_deferred: bool = True,
    ) -> None:
        """`is_deferred`: residuals wait; not where a device runs behind, which copies hold up."""
        self.spec = spec
        self._is_deferred = is_deferred
        self.size = feature_size
        self.block_size = block_size
        self._waiting: list[tuple[np.ndarray, Tensor]] = []  # slots, residuals of all layers
        self._num_waiting = 0
        self._rows = torch.zeros(num_blocks * block_size, feature_size, dtype=dtype, device=device)

    @property
    def layers(self) -> tuple[int, ...]:
        """Whose residuals `write` wants, in this order."""
        return self.spec.layers

    def write(self, batch: AttentionBatch, residuals: list[Tensor]) -> None:
        """Keep the residuals, each [N, H], of the N new tokens of a forward."""
        slots = batch.slots(self.block_size)
        if not self._is_deferred:
            self._keep(slots, self.spec.project(torch.cat(residuals, dim=-1)))
            return
        self._waiting.append((slots, torch.cat(residuals, dim=-1)))
        self._num_waiting += len(slots)
        if self._num_waiting >= _MOST_WAITING:
            self._project()

    def read(self, spans: Sequence[Span]) -> Tensor:
        """Features of all positions of all spans, one after the other: [N, H]."""
        if self._waiting:
            self._project()
        slots = [self._slots(*span) for span in spans]
        index = np.concatenate(slots) if slots else np.empty(0, np.int64)
        return self._rows.index_select(0, self._uploaded(index))

    def _project(self) -> None:
        """What waits; of tokens in one slot the last, since those before it were rejected."""
        slots = np.concatenate([slots for slots, _ in self._waiting])
        kept, from_behind = np.unique(slots[::-1], return_index=True)
        places = self._uploaded(len(slots) - 1 - from_behind)
        residuals = torch.cat([residuals for _, residuals in self._waiting])
        self._keep(kept, self.spec.project(residuals.index_select(0, places)))
        self._waiting.clear()
        self._num_waiting = 0

    def _keep(self, slots: np.ndarray, features: Tensor) -> None:
        self._rows.index_copy_(0, self._uploaded(slots), features.to(self._rows.dtype))

    def _uploaded(self, places: np.ndarray) -> Tensor:
        """To the device, without a wait for the forward that is at work there."""
        # Not pinned: the copy has left this memory when the call returns.
        return torch.from_numpy(places).to(self._rows.device, non_blocking=True)

    def _slots(self, block_ids: list[int], start: int, end: int) -> np.ndarray:
        positions = np.arange(start, end)
        blocks = np.asarray(block_ids, dtype=np.int64)[positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size
