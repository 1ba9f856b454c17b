"""A drafter of whole blocks: one parallel pass, then draws, serial where a head needs them so.

DSpark and DFlash are settings of this class: see `dspark` and `load`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specserve.backends.base import Backend
from specserve.drafters.backbone import Backbone
from specserve.drafters.confidence_head import ConfidenceHead
from specserve.drafters.protocol import (
    ContextUpdate,
    DraftBatch,
    FeatureSpec,
    ProbsConfidence,
    SpeculationBatch,
)
from specserve.drafters.row_layout import context_lens, flat_positions
from specserve.drafters.serial_head import SerialHead
from specserve.drafters.spec import Layout
from specserve.drafters.uncomputed_tokens import UncomputedTokens
from specserve.sampling.draft_sampler import BlockLayout, DraftSampler, DraftSampling


class BlockDrafter:
    """`Drafter` over a `Backbone`; every part beyond it may be absent.

    Where draws are captured, confidences have to be there before the first of them.
    """

    holds_pending_tokens = True
    stops_in_time = False

    def __init__(
        self,
        backbone: Backbone,
        *,
        backend: Backend,
        num_context_tokens: int,
        head: SerialHead | None = None,
        confidence_head: ConfidenceHead | None = None,
        probs_confidence: ProbsConfidence | None = None,
        target_ids: Tensor | None = None,
    ) -> None:
        """Contexts have `num_context_tokens` positions over all rows.

        `target_ids` [DV]: ids of the draft vocabulary; None where that is the target's.
        `probs_confidence` is used only without a confidence head.
        """
        spec = backbone.spec
        self.backbone = backbone
        self._passes = backend.block_passes(backbone, num_tokens=num_context_tokens)
        self.context = self._passes.context
        self.name = spec.name
        self.gamma = spec.gamma
        self.feature_size = spec.decoder.hidden_size
        self.features = FeatureSpec(spec.feature_layers, backbone.projector)
        self.head = head
        self.confidence_head = confidence_head
        self.probs_confidence = probs_confidence
        self.target_ids = target_ids
        self._first_slot = 1 if spec.layout is Layout.FILL_IN else 0
        # Pending tokens become entries as they do in a block: by the layers' own keys. The next
        # draft computes them; should they be needed before, this does.
        self._uncomputed = UncomputedTokens()
        device = backbone.embedding.device
        self._block_ids = torch.full((1, spec.block_size), spec.mask_token_id, device=device)
        self._draws = backend.block_draws(self._drawn, spec.draft_vocab_size)

    def context_len(self, row: int) -> int:
        return self.context.rows.length(row)

    @torch.inference_mode()
    def extend(self, update: ContextUpdate) -> None:
        if update.features is not None and any(row in self._uncomputed for row in update.rows):
            self._compute_entering()
        slots = self.context.rows.append(update.rows, update.starts, update.counts)
        if update.features is None:
            token_ids = update.token_ids.tolist()
            self._uncomputed.add(update.rows, update.starts, update.counts, token_ids)
            return
        positions = flat_positions(update.starts, update.counts)
        self._passes.write_context(update.features, positions.numpy(), slots)

    def _compute_entering(self) -> None:
        entering = self._uncomputed.all()
        if entering is not None:
            self._passes.enter(entering)
            self._uncomputed.computed()

    def truncate(self, row: int, length: int) -> None:
        self._uncomputed.truncate(row, length)
        self.context.rows.truncate(row, length)

    def free(self, row: int) -> None:
        self._uncomputed.truncate(row, 0)
        self.context.rows.free(row)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        lengths = context_lens(batch, self.context.rows)
        anchor_positions = self._anchor_positions(batch, lengths)
        hidden = self.block_hidden(batch, lengths)[:, self._first_slot :]
        layout = BlockLayout(
            positions=anchor_positions + 1,
            num_slots=self.gamma,
            vocab_size=self.backbone.spec.decoder.vocab_size,
            target_ids=self.target_ids,
        )
        drawn = self._draws.draw(
            hidden, batch.anchor_ids, sampler.begin(layout), keep_logits=batch.keep_logits
        )
        if not batch.keep_logits:
            return replace(drawn, logits=None)
        return replace(drawn, target_ids=self.target_ids)

    def _drawn(
        self, hidden: Tensor, anchor_ids: Tensor, sampling: DraftSampling
    ) -> SpeculationBatch:
        """From the pass's hidden states [B, G, H]; with the logits."""
        logits = self.backbone.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
        if self.head is None:
            drawn = self._draw_all(logits, sampling)
        else:
            drawn = self._draw_serially(self.head, hidden, logits, anchor_ids, sampling)
        if self.confidence_head is None:
            return drawn
        previous_ids = torch.cat([anchor_ids[:, None], drawn.token_ids[:, :-1]], dim=1)
        return replace(drawn, confidences=self.confidence_head(hidden, previous_ids))

    def block_hidden(self, batch: DraftBatch, lengths: Sequence[int]) -> Tensor:
        """Final hidden states [B, block_size, H] of all slots."""
        token_ids = self._block_ids.repeat(len(batch.rows), 1)
        token_ids[:, 0] = batch.anchor_ids
        entering = self._uncomputed.all()
        hidden = self._passes.blocks(
            batch.rows, lengths, token_ids, entering, batch.gap_ids, batch.max_gap()
        )
        self._uncomputed.computed()
        return hidden

    def _anchor_positions(self, batch: DraftBatch, lengths: Sequence[int]) -> Tensor:
        if batch.gap_ids is not None:
            lengths = [n + len(ids) for n, ids in zip(lengths, batch.gap_ids, strict=True)]
        return torch.tensor(lengths, device=self._block_ids.device)

    def _draw_all(self, logits: Tensor, sampling: DraftSampling) -> SpeculationBatch:
        asked = self.probs_confidence
        confidences = None if asked is None else asked(0, logits)
        token_ids = sampling.draw(0, logits)
        return SpeculationBatch(token_ids, sampling.draft_probs(), confidences, logits=logits)

    def _draw_serially(
        self,
        head: SerialHead,
        hidden: Tensor,
        base_logits: Tensor,
        anchor_ids: Tensor,
        sampling: DraftSampling,
    ) -> SpeculationBatch:
        reads_probs = self.probs_confidence is not None and self.confidence_head is None
        drawn: list[Tensor] = []
        confidences: list[Tensor] = []
        run, previous_ids = head.begin(hidden, base_logits), anchor_ids
        for slot in range(self.gamma):
            logits = run.logits(slot, previous_ids)
            if self.probs_confidence is not None and reads_probs:
                confidences.append(self.probs_confidence(slot, logits[:, None]))
            drawn.append(sampling.draw(slot, logits[:, None]))
            previous_ids = drawn[-1][:, 0]
        return SpeculationBatch(
            torch.cat(drawn, dim=1),
            sampling.draft_probs(),
            torch.cat(confidences, dim=1) if confidences else None,
            logits=base_logits,  # by now those that the tokens were drawn from
        )
