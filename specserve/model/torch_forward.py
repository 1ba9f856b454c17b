"""A target's forward pass over a paged cache by torch's own operations: see `forward`."""

import torch

from specserve.model.attention import Attention, AttentionBatch, TorchAttention
from specserve.model.dealing import HeadShare
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
        spec, heads = model.config, model.heads
        self._model = model
        shape = CacheShape(
            num_layers=spec.num_layers,
            num_kv_heads=len(heads.kv),
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
        self._attention = (
            _deterministic_attention(self.cache, heads)
            if deterministic
            else TorchAttention(self.cache, num_heads=len(heads.queries), deterministic=False)
        )

    def plan(self, batch: AttentionBatch) -> None:
        self._attention.plan(batch)
        self._positions = torch.from_numpy(batch.positions()).to(self.cache.device)

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return self._model.forward(token_ids, self._positions, self._attention, taps)


def _deterministic_attention(cache: KVCache, heads: HeadShare) -> Attention:
    """Always of whole groups of query heads, as one rank has them: kernels go by such sizes."""
    before, behind = heads.missing
    num_heads = before + len(heads.queries) + behind
    attention = (
        FixedAttention(cache, num_heads=num_heads)
        if cache.device.type == "cuda"
        else TorchAttention(cache, num_heads=num_heads, deterministic=True)
    )
    return _PartOfGroup(attention, before, behind) if before or behind else attention


class _PartOfGroup:
    """Attention of some query heads of one group; zeros are in the place of the others.

    They cost what the others would: a share of the work is given up for the bits of one rank.
    """

    def __init__(self, whole: Attention, before: int, behind: int) -> None:
        self._whole = whole
        self._before, self._behind = before, behind

    def plan(self, batch: AttentionBatch) -> None:
        self._whole.plan(batch)

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        padded = torch.nn.functional.pad(q, (0, 0, self._before, self._behind))
        found = self._whole.run(layer_index, padded, k, v)
        return found[:, self._before : self._before + q.shape[1]]
