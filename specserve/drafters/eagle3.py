"""EAGLE-3, of any supported dialect: one decoder layer that continues the target's features.

Entry p of its context pairs the feature of position p with the token at p + 1. So a row's last
feature waits for a token: the anchor, which every draft call brings itself. Only one layer deep,
the context needs keys and values, never an output.

Pending tokens have no features yet: behind them the chain runs on its own, as it does in a block.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specserve.drafters.backbone import ContextEntries, FeatureProjector
from specserve.drafters.chain_stopping import ChainEnding
from specserve.drafters.feature_chains import FeatureChains
from specserve.drafters.protocol import (
    ContextUpdate,
    DraftBatch,
    FeatureSpec,
    ProbsConfidence,
    SpeculationBatch,
)
from specserve.drafters.row_layout import context_lens, flat_positions
from specserve.drafters.spec import Eagle3Spec
from specserve.models.layers import AttentionRun, DecoderLayer, RMSNorm
from specserve.models.parts import Linear
from specserve.models.rope import RotaryTable
from specserve.sampling.draft_sampler import BlockLayout, DraftSampler


@dataclass(frozen=True)
class Eagle3Decoder:
    """The weights of the one layer and what surrounds it."""

    spec: Eagle3Spec
    projector: FeatureProjector  # fc without a norm behind it
    embedding: Tensor
    layer: DecoderLayer  # its input norm is that of the embeddings
    hidden_norm: RMSNorm
    entries: ContextEntries
    final_norm: RMSNorm
    lm_head: Linear
    rotary: RotaryTable

    def inputs(self, token_ids: Tensor, normed: Tensor) -> Tensor:
        """Tokens [N] and `hidden_norm` of the features before them [N, H]: [N, 2H]."""
        embedded = self.layer.input_norm(self.embedding.index_select(0, token_ids))
        return torch.cat([embedded, normed], dim=1)

    def step(
        self, token_ids: Tensor, hidden: Tensor, positions: Tensor, attention: AttentionRun
    ) -> Tensor:
        """What follows, [N, H], before the final norm; `positions` are those of `hidden`."""
        rotary = self.rotary.at(positions)
        normed = self.hidden_norm(hidden)
        attended = self.layer.attend(self.inputs(token_ids, normed), rotary, attention)
        hidden = attended.add_(normed if self.spec.norm_before_residual else hidden)
        return self.layer.feed_forward(self.layer.mlp_norm(hidden)).add_(hidden)

    def read(self, stepped: Tensor) -> tuple[Tensor, Tensor]:
        """Of what a step made: the features that the next one continues, and logits [N, DV]."""
        normed = self.final_norm(stepped)
        features = normed if self.spec.feeds_normed else stepped
        return features, self.lm_head(normed).float()

    def features(self, stepped: Tensor) -> Tensor:
        """As `read`, where nothing is drawn."""
        return self.final_norm(stepped) if self.spec.feeds_normed else stepped


class Eagle3Drafter:
    """`Drafter`: a chain of gamma steps, each feeding on the features of the one before."""

    holds_pending_tokens = False
    stops_in_time = True

    def __init__(
        self,
        decoder: Eagle3Decoder,
        chains: FeatureChains,
        *,
        probs_confidence: ProbsConfidence | None = None,
        target_ids: Tensor | None = None,
    ) -> None:
        """`target_ids` [DV]: ids of the draft vocabulary; None where that is the target's."""
        spec = decoder.spec
        self.decoder = decoder
        self.context = chains.context
        self.name = "eagle3"
        self.gamma = spec.gamma
        self.feature_size = spec.decoder.hidden_size
        self.features = FeatureSpec(spec.feature_layers, decoder.projector)
        self.probs_confidence = probs_confidence
        self.target_ids = target_ids
        cache = self.context.cache
        self._chains = chains
        self._ending = ChainEnding()
        # Features by slot: truncation may leave any of them waiting for another token.
        self._features = torch.zeros(
            cache.num_blocks * cache.block_size,
            self.feature_size,
            dtype=cache.keys.dtype,
            device=cache.device,
        )

    def context_len(self, row: int) -> int:
        return self.context.rows.length(row)

    @torch.inference_mode()
    def extend(self, update: ContextUpdate) -> None:
        if update.features is None:
            raise ValueError("this drafter's context is made of features")
        rows, device = self.context.rows, self._features.device
        slots = rows.append(update.rows, update.starts, update.counts)
        self._features[torch.from_numpy(slots).to(device)] = update.features
        # A row's first token has no feature before it; all others complete an entry.
        kept = flat_positions(update.starts, update.counts) > 0
        token_ids = update.token_ids[kept.to(device)]
        if len(token_ids) == 0:
            return
        positions = (flat_positions(update.starts, update.counts)[kept] - 1).to(device)
        paired = [
            rows.slots(row, max(start - 1, 0), start + count - 1)
            for row, start, count in zip(update.rows, update.starts, update.counts, strict=True)
        ]
        entry_slots = torch.from_numpy(np.concatenate(paired))
        normed = self.decoder.hidden_norm(self._features[entry_slots.to(device)])
        inputs = self.decoder.inputs(token_ids, normed)
        entries = self.decoder.entries(inputs, self.decoder.rotary.at(positions))
        self.context.write(entry_slots.numpy(), *entries)

    def truncate(self, row: int, length: int) -> None:
        self.context.rows.truncate(row, length)

    def free(self, row: int) -> None:
        self.context.rows.free(row)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        lengths = context_lens(batch, self.context.rows)
        device = self._features.device
        last_slots = [
            int(self.context.rows.slots(row, length - 1, length)[0])
            for row, length in zip(batch.rows, lengths, strict=True)
        ]
        hidden = self._features[torch.tensor(last_slots, device=device)]
        gaps = [len(ids) for ids in batch.gap_ids or [()] * len(lengths)]
        gap = batch.max_gap()
        pads = [gap - own for own in gaps] if gap else None
        before = [length - 1 for length in lengths]
        self._chains.plan(batch.rows, before, gap + self.gamma, pads)
        if pads is not None:
            hidden = self._bridge(batch, hidden, torch.tensor(pads, device=device))
        firsts = [length + own + 1 for length, own in zip(lengths, gaps, strict=True)]
        sampling = sampler.begin(
            BlockLayout(
                torch.tensor(firsts, device=device),
                self.gamma,
                self.decoder.spec.decoder.vocab_size,
                self.target_ids,
            )
        )
        token_ids, drawn, confidences, kept = batch.anchor_ids, [], [], []
        self._ending.begin(batch, has_confidences=self.probs_confidence is not None)
        for slot in range(self.gamma if batch.most is None else min(batch.most, self.gamma)):
            hidden, logits = self._chains.step(token_ids, hidden)
            logits = logits[:, None]
            if self.probs_confidence is not None:
                confidences.append(self.probs_confidence(slot, logits))
            goes_on = self._ending.goes_on(lambda: confidences[-1][:, 0].tolist())
            drawn.append(sampling.draw(slot, logits))
            if batch.keep_logits:
                kept.append(logits.clone())  # whose memory the next step may take
            token_ids = drawn[-1][:, 0]
            if not goes_on:
                break
        self._ending.timer.end()
        return SpeculationBatch(
            torch.cat(drawn, dim=1),
            sampling.draft_probs(),
            torch.cat(confidences, dim=1) if confidences else None,
            logits=torch.cat(kept, dim=1) if kept else None,
            target_ids=self.target_ids if kept else None,
            token_s=self._ending.timer.further_s,
        )

    def _bridge(self, batch: DraftBatch, hidden: Tensor, pads: Tensor) -> Tensor:
        """The chain's own features [B, H] of the last pending tokens.

        Shorter gaps are padded on the left with steps that leave a block as it is.
        """
        gap_ids, gap = batch.gap_ids, batch.max_gap()
        assert gap_ids is not None
        padded = [[0] * (gap - len(ids)) + list(ids) for ids in gap_ids]
        columns = torch.tensor(padded, device=hidden.device).T
        for place, token_ids in enumerate(columns):
            stepped = self._chains.follow(token_ids, hidden)
            is_real = pads <= place
            hidden = torch.where(is_real[:, None], stepped, hidden)
        return hidden
