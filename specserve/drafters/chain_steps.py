"""The steps of a language model's chains: a pass, logits, confidences and draws, and so on."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specserve.drafters.chain_ending import ChainEnding
from specserve.drafters.chain_passes import ChainPasses
from specserve.drafters.protocol import DraftBatch, LawConfidence, SpeculationBatch
from specserve.models.transformer import Transformer
from specserve.sampling.drawing import Drawing


class ChainSteps(Protocol):
    """Of one draft call."""

    def run(self, ending: ChainEnding) -> SpeculationBatch:
        """Slot after slot of all chains, until `ending`, which has begun, says that they end."""
        ...


@dataclass(frozen=True)
class Chains:
    """What a draft call is about."""

    model: Transformer
    passes: ChainPasses  # planned
    law_confidence: LawConfidence | None
    drawing: Drawing
    batch: DraftBatch
    most: int  # steps


class TorchSteps:
    """Each part by who knows it."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._token_ids: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._kept: Tensor | None = None
        if chains.batch.keep_logits:
            shape = len(chains.batch.rows), chains.most, chains.model.config.vocab_size
            self._kept = torch.empty(shape, device=chains.batch.anchor_ids.device)

    def run(self, ending: ChainEnding) -> SpeculationBatch:
        for _ in range(self._chains.most):
            logits = self._pass()
            goes_on = ending.goes_on(self._last_confidences)
            slot = len(self._token_ids)
            self._token_ids.append(self._chains.drawing.draw(slot, logits))
            if self._kept is not None:
                self._kept[:, slot] = logits[:, 0]
            if not goes_on:
                break
        return self._drawn()

    def _pass(self) -> Tensor:
        """Logits [B, 1, V] of the next slot."""
        chains, slot = self._chains, len(self._token_ids)
        previous = self._token_ids[-1][:, 0] if slot else chains.batch.anchor_ids
        hidden = chains.passes.run(previous)
        logits = chains.model.lm_head(hidden).float()[:, None]
        if chains.law_confidence is not None:
            self._confidences.append(chains.law_confidence(slot, logits))
        return logits

    def _last_confidences(self) -> list[float]:
        """Of the tokens about to be drawn: one a chain."""
        return self._confidences[-1][:, 0].tolist()

    def _drawn(self) -> SpeculationBatch:
        confidences, kept = self._confidences, self._kept
        return SpeculationBatch(
            torch.cat(self._token_ids, dim=1),
            self._chains.drawing.law(),
            torch.cat(confidences, dim=1) if confidences else None,
            logits=None if kept is None else kept[:, : len(self._token_ids)],
        )
