"""DSpark's confidence head: P(slot's token accepted | those before it were), before it is drawn.

The head reads the slot's hidden state and, if it was trained so, the embedding of the token in the
slot before. That embedding enters linearly, so it is reduced to one number a token at load time.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specserve.drafters.markov_head import EMBEDDING
from specserve.drafters.spec import ConfidenceSpec
from specserve.drafters.weights import DraftWeights

WEIGHT = "confidence_head.proj.weight"
BIAS = "confidence_head.proj.bias"  # absent in some checkpoints: zero


@dataclass(frozen=True)
class ConfidenceHead:
    hidden_weight: Tensor  # [H] float32
    token_logits: Tensor | None  # [V] float32: contribution of the previous token
    bias: Tensor  # [] float32
    temperatures: Tensor | None = None  # [G] of sequential temperature scaling

    def logits(self, hidden: Tensor, previous_ids: Tensor) -> Tensor:
        """hidden [B, G, H], the anchor and all drafted tokens but the last [B, G]: raw [B, G]."""
        logits = torch.matmul(hidden.float(), self.hidden_weight).add_(self.bias)
        return logits if self.token_logits is None else logits + self.token_logits[previous_ids]

    def __call__(self, hidden: Tensor, previous_ids: Tensor) -> Tensor:
        """As `logits`, calibrated, as probabilities."""
        logits = self.logits(hidden, previous_ids)
        if self.temperatures is not None:
            logits = logits / self.temperatures
        return logits.sigmoid_()

    def calibrated(self, temperatures: Tensor) -> "ConfidenceHead":
        """This head with its logits divided by temperatures [G] before the sigmoid."""
        return replace(self, temperatures=temperatures.to(self.hidden_weight))


def load_confidence_head(weights: DraftWeights, spec: ConfidenceSpec) -> ConfidenceHead:
    weight = weights.tensor(WEIGHT)[0].float()
    bias = weights.tensor(BIAS)[0].float() if BIAS in weights.checkpoint else weight.new_zeros(())
    if not spec.with_markov:
        return ConfidenceHead(weight, None, bias)
    embedding = weights.tensor(EMBEDDING).float()
    hidden_weight, token_weight = weight.split(
        (len(weight) - embedding.shape[1], embedding.shape[1])
    )
    return ConfidenceHead(hidden_weight.contiguous(), embedding @ token_weight, bias)
