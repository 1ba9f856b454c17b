"""A target's forward pass over a paged cache: laid out once, then run.

By torch's operations, recorded or one by one, or compiled.
"""

from typing import Protocol

import numpy as np
import torch

from specserve.backends.cuda import cuda_graphs
from specserve.models.attention import AttentionBatch
from specserve.models.compiled_forward import CompiledForward
from specserve.models.forward_trial import are_usable
from specserve.models.recorded_forward import RecordedForward
from specserve.models.torch_forward import TorchForward
from specserve.models.transformer import Transformer


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

    def plan(self, batch: AttentionBatch) -> None:
        """Lay out one forward of `batch`."""
        ...

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As `Transformer.forward`, of the batch that is planned: token_ids [N]."""
        ...


def make_forward(
    model: Transformer,
    *,
    num_blocks: int,
    block_size: int,
    deterministic: bool,
    kv_dtype: torch.dtype | None = None,
) -> Forward:
    """The fastest one that this model and machine have, the same on every rank.

    `kv_dtype`: keys and values are kept in it; None: in the one that is computed with.
    """
    kept = kv_dtype or model.embedding.dtype
    is_readable = kept in (torch.float32, torch.bfloat16)
    if model.parallel.agree(is_readable and CompiledForward.suits(model) and are_usable()):
        return CompiledForward(model, num_blocks=num_blocks, block_size=block_size, kv_dtype=kept)
    plain = TorchForward(
        model,
        num_blocks=num_blocks,
        block_size=block_size,
        deterministic=deterministic,
        kv_dtype=kept,
    )
    if cuda_graphs.are_used(plain.cache.device) and not deterministic:
        return RecordedForward(model, plain)
    return plain
