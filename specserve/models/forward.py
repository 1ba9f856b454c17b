"""A target's forward pass over a paged cache, as backends make it: laid out once, then run."""

from typing import Protocol

import numpy as np
import torch

from specserve.models.attention import AttentionBatch


class Cache(Protocol):
    """What others than attention may know of keys and values."""

    num_blocks: int
    block_size: int
    kept_dtype: torch.dtype  # of keys and values

    def read(self, layer: int, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `block_ids`, in order: [num_kv_heads, positions, head_dim] each."""
        ...

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Whatever is in them must not reach a later owner."""
        ...


class Forward(Protocol):
    @property
    def cache(self) -> Cache: ...

    @property
    def num_computed(self) -> int:
        """Tokens that the last `run` computed: N, and those that padded it."""
        ...

    def plan(self, batch: AttentionBatch) -> None:
        """Lay out one forward of `batch`."""
        ...

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As `Transformer.forward`, of the batch that is planned: token_ids [N]."""
        ...
