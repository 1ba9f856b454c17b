"""A target's forward pass over a paged cache by torch's own operations: see `forward`."""

import torch

from specserve.model.attention import AttentionBatch, TorchAttention
from specserve.model.fixed_attention import FixedAttention
from specserve.model.kv_cache import CacheShape, KVCache
from specserve.model.transformer import Transformer


class TorchForward:
    """Any model on any device."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """`kv_dtype`: keys and values are kept in it; None: in the one that is computed with."""
        spec, num_ranks = model.config, model.parallel.size
        self._model = model
        shape = CacheShape(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads // num_ranks,
            head_dim=spec.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
        )
        self.cache = KVCache(
            shape,
            dtype=model.embedding.dtype,
            device=model.embedding.device,
            kept_dtype=kv_dtype,
        )
        num_heads = spec.num_heads // num_ranks
        self._attention = (
            FixedAttention(self.cache, num_heads=num_heads)
            if deterministic and self.cache.device.type == "cuda"
            else TorchAttention(self.cache, num_heads=num_heads, deterministic=deterministic)
        )

    def plan(self, batch: AttentionBatch) -> None:
        self._attention.plan(batch)
        self._positions = torch.from_numpy(batch.positions()).to(self.cache.device)

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self._model.forward(token_ids, self._positions, self._attention, taps)
