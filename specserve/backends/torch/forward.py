"""A target's forward pass over a paged cache by torch's own operations: see `forward`."""

from collections.abc import Callable

import torch

from specserve.backends.torch.attention import TorchAttention
from specserve.backends.torch.fixed_attention import FixedAttention
from specserve.models.attention import Attention, AttentionBatch
from specserve.models.dealing import HeadShare
from specserve.models.kv_cache import CacheShape, KVCache
from specserve.models.transformer import Transformer


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
        num_spare_blocks: int = 0,
    ) -> None:
        """`kv_dtype`: keys and values are kept in it; None: in the one that is computed with.

        `num_spare_blocks`: of its cache, for who takes over its attention (`attend_by`).
        """
        spec, heads = model.config, model.heads
        self._model = model
        shape = CacheShape(
            num_layers=spec.num_layers,
            num_kv_heads=len(heads.kv),
            head_dim=spec.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
            num_spare_blocks=num_spare_blocks,
        )
        self.cache = KVCache(
            shape,
            dtype=model.embedding.dtype,
            device=model.embedding.device,
            kept_dtype=kv_dtype,
        )
        if deterministic:
            self._attention = of_whole_groups(self._deterministic_attention, heads)
        else:
            num_heads = len(heads.queries)
            self._attention = TorchAttention(self.cache, num_heads=num_heads, deterministic=False)
        self.num_computed = 0

    def attend_by(self, attention: Attention) -> None:
        """From now on, over the same cache."""
        self._attention = attention

    def _deterministic_attention(self, num_heads: int) -> Attention:
        if self.cache.device.type == "cuda":
            return FixedAttention(self.cache, num_heads=num_heads)
        return TorchAttention(self.cache, num_heads=num_heads, deterministic=True)

    def plan(self, batch: AttentionBatch) -> None:
        self._attention.plan(batch)
        # Not pinned: the copy has left this memory when the call returns.
        positions = torch.from_numpy(batch.positions())
        self._positions = positions.to(self.cache.device, non_blocking=True)

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        self.num_computed = len(token_ids)
        return self._model.forward(token_ids, self._positions, self._attention, taps)


def of_whole_groups(make: Callable[[int], Attention], heads: HeadShare) -> Attention:
    """Attention of a rank's `heads` by what `make` makes for a number of query heads.

    That is always of whole groups, as one rank has them: libraries choose kernels by such sizes.
    """
    before, behind = heads.missing
    whole = make(before + len(heads.queries) + behind)
    return _PartOfGroup(whole, before, behind) if before or behind else whole


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
