"""Passes of chains by the target's own layers: see `specserve.drafters.chain_passes`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.torch.attention import TorchAttention
from specserve.drafters.branch_attention import Entering
from specserve.drafters.chain_attention import ChainAttention
from specserve.drafters.chain_passes import entering_tokens
from specserve.drafters.context import TorchContext
from specserve.models.transformer import Transformer


class TorchChainPasses:
    """The target's own layers, with attention of chains: on any device, in any dtype."""

    def __init__(self, model: Transformer, context: TorchContext) -> None:
        spec = model.config
        self.context = context
        self._model = model
        self._causal = TorchAttention(context.cache, num_heads=spec.num_heads, deterministic=False)
        self._attention = ChainAttention(
            context, num_heads=spec.num_heads, scale=spec.head_dim**-0.5
        )

    def enter(self, entering: Entering) -> None:
        token_ids, positions = entering_tokens(entering, self._model.embedding.device)
        self._causal.plan(self.context.causal_batch(entering.rows, entering.counts))
        self._model.forward(token_ids, positions, self._causal)

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        self._attention.plan(rows, lengths, num_passes, entering=entering)
        device = self._model.embedding.device
        self._positions, self._num_passes = torch.tensor(lengths, device=device), 0
        self._entering = None if entering is None else entering_tokens(entering, device)

    def run(self, token_ids: Tensor) -> Tensor:
        num_chains = len(token_ids)
        # Drafts past the model's last position are never used, but must not fail.
        positions = self._positions + self._num_passes
        positions = positions.clamp(max=self._model.num_positions - 1)
        if self._entering is not None:
            first_ids, first_positions = self._entering
            token_ids = torch.cat([first_ids, token_ids])
            positions = torch.cat([first_positions, positions])
            self._entering = None
        hidden, _ = self._model.forward(token_ids, positions, self._attention)
        self._attention.advance()
        self._num_passes += 1
        return hidden[-num_chains:]
