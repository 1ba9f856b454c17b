"""Batch in, logits and tapped features out: the model, its KV cache and attention on one rank.

Knows neither requests nor sampling. The same object runs on every rank; rank 0 gets logits.
"""

from dataclasses import dataclass

import torch

from specserve.model.attention import TorchAttention
from specserve.model.kv_cache import KVCache
from specserve.model.transformer import Transformer
from target_node.batch import ForwardBatch


@dataclass(frozen=True)
class ForwardOutput:
    """logits [R, V] float32 on rank 0, None elsewhere; features: one [N, H] a tapped layer."""

    logits: torch.Tensor | None
    features: list[torch.Tensor]


class Runner:
    """Runs forwards of one rank's share of the target."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        taps: tuple[int, ...] = (),
    ) -> None:
        spec, ranks = model.config, model.parallel.size
        self.model = model
        self.taps = taps
        self.cache = KVCache(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads // ranks,
            head_dim=spec.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=model.embedding.dtype,
            device=model.embedding.device,
        )
        self.attention = TorchAttention(
            self.cache, num_heads=spec.num_heads // ranks, deterministic=deterministic
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        device = self.cache.device
        self.cache.zero_blocks(batch.fresh_blocks)
        self.attention.plan(batch.attention)
        hidden, features = self.model.forward(
            torch.from_numpy(batch.token_ids).to(device),
            torch.from_numpy(batch.positions).to(device),
            self.attention,
            self.taps,
        )
        if not len(batch.logits_index):
            return ForwardOutput(None, features)
        wanted = torch.from_numpy(batch.logits_index).to(device)
        rows = hidden if len(wanted) == len(hidden) else hidden.index_select(0, wanted)
        return ForwardOutput(self.model.logits(rows), features)
