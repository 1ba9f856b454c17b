"""A small decoder that learns a target's distributions: what a standalone language model drafts
from.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.device import stays_eager
from draft_node.training.frozen_target import FrozenTarget
from specserve.models.transformer import EMBEDDING_TAP

_EVALUATED_ROWS = 8  # at once
_EVALUATED_LENGTH = 256  # tokens of a row
_MAX_LOGITS = 1 << 25  # at once


class DistilledDecoder(Decoder):
    """`Trainable`: cross-entropy with the target's distribution for a `share`, with the text for
    the rest.

    Acceptance is how much of the two distributions overlaps, so it is the distribution that is
    worth learning; the gradient is that of KL(target || draft).
    """

    def __init__(self, config: DecoderConfig, target: FrozenTarget, share: float) -> None:
        super().__init__(config)
        self.target, self._share = target, share

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """Nats per token. token_ids and labels [B, T]."""
        logits = self(token_ids).flatten(0, 1).float()
        plain = F.cross_entropy(logits, labels.flatten())
        if self._share == 0:
            return plain
        told = F.cross_entropy(logits, self._distributions(token_ids))
        return torch.lerp(plain, told, self._share)

    @stays_eager  # a forward pass that has kernels of its own
    @torch.no_grad()
    def _distributions(self, token_ids: Tensor) -> Tensor:
        """The target's probabilities of the token after each, [B * T, V] float32."""
        _, hidden = self.target.read(token_ids, (EMBEDDING_TAP,))  # no features, but some must be
        return self.target.probs(hidden.flatten(0, 1))

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Nats a token of each held-out stream, and the share of its drafts that would stand."""
        figures = super().evaluate(streams)
        for domain, stream in streams.items():
            figures[f"{domain} accepted"] = self.acceptance(stream)
        return figures

    @torch.no_grad()
    def acceptance(self, stream: np.ndarray) -> float:
        """Mean overlap of the two distributions at temperature 1 over a stream's windows."""
        length = min(_EVALUATED_LENGTH, len(stream) - 1, self.config.max_position_embeddings)
        starts = range(0, len(stream) - length, length)
        rows = torch.from_numpy(np.stack([stream[s : s + length] for s in starts]).astype(np.int64))
        overlaps: list[Tensor] = []
        for part in rows.to(self.target.device).split(_EVALUATED_ROWS):
            drafted = self(part).flatten(0, 1).float().softmax(-1)
            overlaps.append(torch.minimum(drafted, self._distributions(part)).sum(-1))
        return float(torch.cat(overlaps).mean())


def micro_tokens(vocab_size: int, tokens_per_step: int) -> int:
    """Tokens whose distributions, the target's and the draft's, fit in memory at once."""
    return min(tokens_per_step, max(256, _MAX_LOGITS // vocab_size))
