"""Entries that a block drafter's context gets of verified tokens, captured once a shape."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.backends.cuda.graphs import CapturedGraphs, padded
from specserve.backends.cuda.padded_blocks import MOST_PADDED_TOKENS
from specserve.drafters.backbone import Backbone
from specserve.drafters.context import TorchContext


class CapturedEntries:
    """Of one drafter and its contexts."""

    def __init__(self, backbone: Backbone, context: TorchContext) -> None:
        def make(num_tokens: int) -> _Entries:
            return _Entries(backbone, context, num_tokens)

        self._graphs = CapturedGraphs(make)

    def __len__(self) -> int:
        return len(self._graphs)

    def keep(
        self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> bool:
        """Of N tokens: features [N, H]; False where they have to be computed otherwise."""
        if len(slots) > MOST_PADDED_TOKENS:
            return False
        made = self._graphs.run(
            padded(len(slots)), lambda each: each.fill(features, positions, slots)
        )
        return made is not None


class _Entries:
    """What is captured: so many tokens, of which those that pad them repeat the first."""

    def __init__(self, backbone: Backbone, context: TorchContext, num_tokens: int) -> None:
        self._backbone = backbone
        self._cache = context.cache
        device = self._cache.device
        self._places = torch.zeros(2, num_tokens, dtype=torch.int64, device=device)
        size = (num_tokens, backbone.spec.decoder.hidden_size)
        self._features = torch.zeros(size, dtype=self._cache.dtype, device=device)

    def fill(
        self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        num_tokens = len(slots)
        token = np.arange(self._places.shape[1])
        token[num_tokens:] = 0
        # Not pinned: the copy has left this memory when the call returns.
        places = torch.from_numpy(np.stack([positions[token], slots[token]]))
        self._places.copy_(places, non_blocking=True)
        self._features[:num_tokens].copy_(features)
        if num_tokens < len(token):
            self._features[num_tokens:].copy_(features[:1])

    def __call__(self) -> None:
        cache, (positions, slots) = self._cache, self._places.unbind(0)
        entries = self._backbone.context_entries(self._features, positions)
        # What is not finite is kept as zeros: see `Context.write`.
        shape = (-1, cache.num_layers, cache.num_kv_heads, cache.head_dim)
        keys, values = (torch.nan_to_num(x, 0.0, 0.0, 0.0).view(shape) for x in entries)
        flat_slots = cache.flat_slots(slots)
        for layer, (k, v) in enumerate(zip(keys.unbind(1), values.unbind(1), strict=True)):
            cache.write(layer, flat_slots, k, v)
