"""Steps of EAGLE-3's chains by torch's own operations: see `specserve.drafters.feature_chains`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.drafters.chain_attention import ChainAttention
from specserve.drafters.context import TorchContext
from specserve.drafters.eagle3 import Eagle3Decoder


class TorchFeatureChains:
    """With attention of chains: on any device, in any dtype."""

    def __init__(self, decoder: Eagle3Decoder, context: TorchContext) -> None:
        spec = decoder.spec.decoder
        self.context = context
        self._decoder = decoder
        self._attention = ChainAttention(
            context, num_heads=spec.num_heads, scale=spec.head_dim**-0.5
        )

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_steps: int,
        pads: Sequence[int] | None = None,
    ) -> None:
        device, given = self.context.cache.device, None if pads is None else torch.tensor(pads)
        self._attention.plan(rows, lengths, num_steps, pads=given)
        self._pads = 0 if given is None else given.to(device)
        self._first, self._num_steps = torch.tensor(lengths, device=device), 0

    def follow(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        return self._decoder.features(self._stepped(token_ids, hidden))

    def step(self, token_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._decoder.read(self._stepped(token_ids, hidden))

    def _stepped(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        offsets = self._num_steps - self._pads
        if isinstance(offsets, Tensor):
            offsets = offsets.clamp(min=0)
        stepped = self._decoder.step(token_ids, hidden, self._first + offsets, self._attention)
        self._attention.advance()
        self._num_steps += 1
        return stepped
