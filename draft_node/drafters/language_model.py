"""A standalone small language model as a drafter: the target's code with other weights.

It reads token ids alone, so its context may run ahead of verification: extend it with tokens in
flight, draft behind any prefix of them, truncate what was rejected.
"""

import torch
from torch import Tensor

from draft_node.context import BlockAttention, ChainAttention, Context
from draft_node.drafters.batching import context_lens, flat_positions, refuse_gap
from specserve.decoding.drawing import BlockLayout, DrawingRule
from specserve.drafting import (
    ContextUpdate,
    DraftBatch,
    FeatureSpec,
    LawConfidence,
    SpeculationBatch,
)
from specserve.model.attention import TorchAttention
from specserve.model.transformer import Transformer


class LanguageModelDrafter:
    """`Drafter`: gamma forward passes of one token a block."""

    holds_tokens_in_flight = True

    def __init__(
        self,
        model: Transformer,
        *,
        gamma: int,
        num_context_tokens: int,
        law_confidence: LawConfidence | None = None,
    ) -> None:
        spec, device = model.config, model.embedding.device
        self.name = "language model"
        self.gamma = gamma
        self.feature_size = 0
        self.features: FeatureSpec | None = None
        self.model = model
        self.law_confidence = law_confidence
        self.context = Context(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            num_tokens=num_context_tokens,
            dtype=model.embedding.dtype,
            device=device,
        )
        self._causal = TorchAttention(
            self.context.cache, num_heads=spec.num_heads, deterministic=False
        )
        self._attention = BlockAttention(
            self.context, num_heads=spec.num_heads, scale=spec.head_dim**-0.5
        )

    def context_len(self, row: int) -> int:
        return self.context.rows.length(row)

    def extend(self, update: ContextUpdate) -> None:
        self.context.rows.append(update.rows, update.starts, update.counts)
        self._causal.plan(self.context.causal_batch(update.rows, update.counts))
        positions = flat_positions(update.starts, update.counts).to(update.token_ids.device)
        self.model.forward(update.token_ids, positions, self._causal)

    def truncate(self, row: int, length: int) -> None:
        self.context.rows.truncate(row, length)

    def free(self, row: int) -> None:
        self.context.rows.free(row)

    def _within(self, positions: Tensor) -> Tensor:
        """Drafts past the model's last position are never used, but must not fail."""
        return positions.clamp(max=self.model.config.max_position_embeddings - 1)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, rule: DrawingRule) -> SpeculationBatch:
        refuse_gap(batch)
        lengths = context_lens(batch, self.context.rows)
        positions = torch.tensor(lengths, device=batch.anchor_ids.device)
        drawing = rule.begin(
            BlockLayout(positions + 1, self.gamma, self.model.config.vocab_size, None)
        )
        chain = ChainAttention(self._attention, batch.rows, lengths)
        token_ids, drawn, confidences, kept = batch.anchor_ids, [], [], []
        for slot in range(self.gamma):
            hidden, _ = self.model.forward(token_ids, self._within(positions + slot), chain)
            logits = self.model.lm_head(hidden).float()[:, None]
            if self.law_confidence is not None:
                confidences.append(self.law_confidence(slot, logits))
            drawn.append(drawing.draw(slot, logits))
            token_ids = drawn[-1][:, 0]
            if batch.keep_logits:
                kept.append(logits)
        return SpeculationBatch(
            torch.cat(drawn, dim=1),
            drawing.law(),
            torch.cat(confidences, dim=1) if confidences else None,
            logits=torch.cat(kept, dim=1) if kept else None,
        )
