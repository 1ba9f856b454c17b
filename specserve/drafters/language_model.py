"""A standalone small language model as a drafter: the target's code with other weights.

It reads token ids alone, so its context may run ahead of verification: extend it with tokens in
flight, draft behind any prefix of them, truncate what was rejected.
"""

from dataclasses import replace

import torch
from torch import Tensor

from specserve.backends.base import Backend
from specserve.drafters.chain_steps import ChainSteps
from specserve.drafters.chain_stopping import ChainEnding
from specserve.drafters.protocol import (
    ContextUpdate,
    DraftBatch,
    FeatureSpec,
    ProbsConfidence,
    SpeculationBatch,
)
from specserve.drafters.row_layout import context_lens, refuse_gap
from specserve.drafters.uncomputed_tokens import UncomputedTokens
from specserve.models.transformer import Transformer
from specserve.sampling.draft_sampler import BlockLayout, DraftSampler

# Tokens that the next draft computes along, of a row and padded of all; more have a pass of their
# own.
_MOST_WAITING, _MOST_AREA = 32, 128


class LanguageModelDrafter:
    """`Drafter`: gamma forward passes of one token a block, or as many as are in time and pay."""

    holds_pending_tokens = True
    stops_in_time = True

    def __init__(
        self,
        model: Transformer,
        *,
        backend: Backend,
        gamma: int,
        num_context_tokens: int,
        probs_confidence: ProbsConfidence | None = None,
        target_ids: Tensor | None = None,
    ) -> None:
        """`target_ids` [DV]: of the tokens that its output head knows; None: it knows them all."""
        self.name = "language model"
        self.gamma = gamma
        self.feature_size = 0
        self.features: FeatureSpec | None = None
        self.model = model
        self.probs_confidence = probs_confidence
        self.target_ids = target_ids
        self._passes = backend.chain_passes(model, num_tokens=num_context_tokens, longest=gamma)
        self.context = self._passes.context
        self._waiting = UncomputedTokens()
        self._ending = ChainEnding()

    def context_len(self, row: int) -> int:
        return self.context.rows.length(row)

    @torch.inference_mode()
    def extend(self, update: ContextUpdate) -> None:
        self.context.rows.reserve(update.rows, update.starts, update.counts)
        token_ids = update.token_ids.tolist()
        self._waiting.add(update.rows, update.starts, update.counts, token_ids)
        if self._waiting.most > _MOST_WAITING or self._waiting.area > _MOST_AREA:
            self._compute_waiting()

    def _compute_waiting(self) -> None:
        entering = self._waiting.all()
        assert entering is not None
        self._passes.enter(entering)
        self._waiting.computed()

    def truncate(self, row: int, length: int) -> None:
        self._waiting.truncate(row, length)
        self.context.rows.truncate(row, length)

    def free(self, row: int) -> None:
        self._waiting.truncate(row, 0)
        self.context.rows.free(row)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        refuse_gap(batch)
        lengths = context_lens(batch, self.context.rows)
        positions = torch.tensor(lengths, device=batch.anchor_ids.device)
        most = self.gamma if batch.most is None else min(batch.most, self.gamma)
        sampling = sampler.begin(
            BlockLayout(positions + 1, most, self.model.config.vocab_size, self.target_ids)
        )
        entering = self._waiting.all()
        self._passes.plan(batch.rows, lengths, most, entering)
        steps = ChainSteps(self.model, self._passes, self.probs_confidence, sampling, batch, most)
        self._ending.begin(batch, has_confidences=self.probs_confidence is not None)
        drawn = steps.run(self._ending)
        self._waiting.computed()
        self._ending.timer.end()
        further_s = self._ending.timer.further_s
        return replace(drawn, token_s=further_s, target_ids=self.target_ids)
