"""The steps of a language model's chains: a pass, logits, confidences and draws, and so on."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specserve.drafters.chain_passes import ChainPasses
from specserve.drafters.chain_stopping import ChainEnding
from specserve.drafters.protocol import DraftBatch, ProbsConfidence, SpeculationBatch
from specserve.models.transformer import Transformer
from specserve.sampling.draft_sampler import DraftSampling


@dataclass
class ChainSteps:
    """Of one draft call."""

    model: Transformer
    passes: ChainPasses  # planned
    probs_confidence: ProbsConfidence | None
    sampling: DraftSampling
    batch: DraftBatch
    most: int  # steps
    _token_ids: list[Tensor] = field(default_factory=list)
    _confidences: list[Tensor] = field(default_factory=list)
    _logits: list[Tensor] = field(default_factory=list)  # that tokens were drawn from

    def run(self, ending: ChainEnding) -> SpeculationBatch:
        """Slot after slot of all chains, until `ending`, which has begun, says that they end."""
        for slot in range(self.most):
            logits = self._pass()
            goes_on = ending.goes_on(self._last_confidences)
            self._token_ids.append(self.sampling.draw(slot, logits))
            if self.batch.keep_logits:
                self._logits.append(logits)
            if not goes_on:
                break
        return SpeculationBatch(
            torch.cat(self._token_ids, dim=1),
            self.sampling.draft_probs(),
            torch.cat(self._confidences, dim=1) if self._confidences else None,
            logits=torch.cat(self._logits, dim=1) if self._logits else None,
        )

    def _pass(self) -> Tensor:
        """Logits [B, 1, DV] of the next slot."""
        slot = len(self._token_ids)
        previous = self._token_ids[-1][:, 0] if slot else self.batch.anchor_ids
        logits = self.model.lm_head(self.passes.run(previous)).float()[:, None]
        if self.probs_confidence is not None:
            self._confidences.append(self.probs_confidence(slot, logits))
        return logits

    def _last_confidences(self) -> list[float]:
        """Of the tokens about to be drawn: one a chain."""
        return self._confidences[-1][:, 0].tolist()
