"""A drafter together with its frozen target and its losses: what the trainer trains.

Of every row, blocks at random anchors are drafted with known previous tokens and compared with the
target's distributions at the same places. Figures are expected tokens a round under rejection
sampling at temperature 1, along held-out text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from draft_node.training import losses, warm_start
from draft_node.training.batches import tokens_of
from draft_node.training.block_model import BlockModel
from draft_node.training.blocks import Blocks, cut_blocks, draw_anchors, gather_rows
from draft_node.training.device import stays_eager
from draft_node.training.draft_vocabulary import DraftVocabulary
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.losses import LossWeights

WINDOW = 256  # tokens among which `anchors` blocks begin, and of an evaluation row
_MAX_LOGITS = 1 << 25  # at once; with more, logits are computed in parts, and again backwards
_EVALUATED_ROWS = 8  # at once


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is trained and measured besides the drafter's own shape."""

    terms: LossWeights
    anchors: int = 32  # a row of WINDOW tokens
    max_gap: int = 0
    seed: int = 0  # of the anchors that are evaluated


@dataclass(frozen=True)
class _Parts:
    """What the losses read, without the drafter's own weights."""

    features: Tensor  # [R, T, layers * H]
    last_hidden: Tensor  # [R, A, G, H]: the target's, where it predicts the labels
    log_sums: Tensor | None  # [R, A, G], where they are known
    blocks: Blocks


@dataclass(frozen=True)
class Figures:
    """How well a drafter does on held-out text."""

    tokens_per_round: float  # the reference's tau_probabilistic, the next token included
    acceptance: list[float]  # of each slot, given that those before it were accepted
    confidence_error: float  # mean of |confidence - acceptance|; NaN without a confidence head


class BlockObjective(nn.Module):
    """`Trainable` of one drafter; its parameters live in `drafter`, the target's nowhere."""

    def __init__(
        self,
        drafter: BlockModel | Eagle3Model,
        target: FrozenTarget,
        config: ObjectiveConfig,
        sample: Tensor | None = None,
        draft_ids: Tensor | None = None,
    ) -> None:
        """`sample` int64 [R, T]: text that a drafter without weights starts by.

        `draft_ids` [DV]: the target's tokens that are drafted; None for all of them.
        """
        super().__init__()
        self.drafter, self.config = drafter, config
        self._target, self._sample = target, sample
        self.vocabulary = DraftVocabulary(target, draft_ids)

    def initialise(self, seed: int) -> None:
        """Small random weights, and what the target's layers offer."""
        warm_start.initialise(self.drafter, self._target, seed, self._sample)

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """The weighted mean of all terms over random blocks of the rows [R, T]."""
        parts = self._draw(torch.cat([token_ids[:, :1], labels], dim=1), None, self.config.max_gap)
        hidden = self.drafter.hidden(parts.features, self._target.embedding, parts.blocks)
        return self.block_loss(hidden, parts.last_hidden, parts.blocks, parts.log_sums)

    def block_loss(
        self, hidden: Tensor, last_hidden: Tensor, blocks: Blocks, log_sums: Tensor | None = None
    ) -> Tensor:
        """The loss from final hidden states of drafter and target, [R, A, G, H] both.

        `log_sums` [R, A, G] as `TargetOutputs` has them.
        """
        weights = losses.slot_weights(blocks.valid, self.config.terms.decay).flatten(0, 1)
        inputs = tuple(
            x.flatten(0, 1)
            for x in (hidden, last_hidden, blocks.previous_ids, blocks.labels, log_sums)
            if x is not None
        )
        count, size = weights.shape
        num_parts = -(-count * size * len(self.vocabulary.head) // _MAX_LOGITS)
        if num_parts <= 1:
            total = self._numerator(inputs, weights)
        else:
            split = zip(*(x.tensor_split(num_parts) for x in (*inputs, weights)), strict=True)
            sums = [
                checkpoint(self._numerator, part[:-1], part[-1], use_reentrant=False)
                for part in split
            ]
            total = torch.stack(sums).sum()
        return total / losses.normaliser(weights)

    def _numerator(self, inputs: tuple[Tensor, ...], weights: Tensor) -> Tensor:
        """hidden, last_hidden [N, G, H], previous_ids, labels (, log_sums) [N, G] -> a scalar."""
        hidden, last_hidden, previous_ids, labels, *log_sums = inputs
        terms, vocabulary = self.config.terms, self.vocabulary
        logits, confidence_logits = self.drafter.heads(hidden, vocabulary.head, previous_ids)
        target_probs = undrafted = None
        if terms.soft or terms.l1 or terms.confidence:
            target_probs, undrafted = vocabulary.target_probs(last_hidden, *log_sums)
        numerator = weights.new_zeros(())
        if terms.soft and target_probs is not None:
            told = losses.soft_cross_entropy(logits, target_probs)
            numerator = numerator + terms.soft * (told * weights).sum()
        if terms.cross_entropy or terms.l1 or terms.confidence:
            slots = losses.slot_losses(
                logits, vocabulary.labels(labels), target_probs, confidence_logits, undrafted
            )
            numerator = numerator + losses.weighted_sum(slots, weights, terms)
        return numerator

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Expected tokens a round for each stream, and behind the longest gap if trained so."""
        figures = {}
        for gap in sorted({0, self.config.max_gap}):
            suffix = f" behind {gap}" if gap else ""
            for domain, stream in streams.items():
                figures[domain + suffix] = self.measure(stream, gap).tokens_per_round
        return figures

    @torch.no_grad()
    def measure(self, stream: np.ndarray, gap: int = 0) -> Figures:
        """Figures over random anchors of the stream's windows, all behind `gap` tokens."""
        generator = torch.Generator().manual_seed(self.config.seed)
        found = [self._measured(rows, gap, generator) for rows in self._windows(stream)]
        l1, valid, errors = (torch.cat(parts) for parts in zip(*found, strict=True))
        is_block = valid[:, 0]  # an anchor before a token that is not learned begins none
        l1, valid, errors = l1[is_block], valid[is_block], errors[is_block]
        accepted = losses.acceptance(l1) * valid
        return Figures(
            tokens_per_round=float(losses.expected_tokens(l1, valid).mean()),
            acceptance=(accepted.sum(0) / valid.sum(0)).tolist(),
            confidence_error=float((errors * valid).sum() / valid.sum()),
        )

    def _measured(
        self, tokens: Tensor, gap: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """l1 distance, validity and error of the confidence, [N, G] each, in rows [R, T + 1]."""
        parts = self._draw(tokens, generator, gap, fixed=True)
        hidden = self.drafter.hidden(parts.features, self._target.embedding, parts.blocks)
        hidden, last_hidden, previous_ids, valid = (
            x.flatten(0, 1)
            for x in (hidden, parts.last_hidden, parts.blocks.previous_ids, parts.blocks.valid)
        )
        head = self.vocabulary.head
        logits, confidence_logits = self.drafter.heads(hidden, head, previous_ids)
        log_draft_probs = logits.float().log_softmax(-1)
        l1 = losses.l1_distance(log_draft_probs, *self.vocabulary.target_probs(last_hidden))
        if confidence_logits is None:
            return l1, valid, torch.full_like(l1, float("nan"))
        errors = confidence_logits.float().sigmoid() - losses.acceptance(l1)
        return l1, valid, errors.abs()

    def _windows(self, stream: np.ndarray) -> list[Tensor]:
        """[R, T + 1] batches of consecutive windows, T = WINDOW where there is room for it."""
        longest = self.drafter.spec.decoder.max_position_embeddings
        length = min(WINDOW, longest, len(stream) - 1)
        starts = range(0, len(stream) - length, length)
        rows = np.stack([stream[s : s + length + 1] for s in starts]).astype(np.int64)
        return list(torch.from_numpy(rows).to(self._target.device).split(_EVALUATED_ROWS))

    @stays_eager  # random numbers, and a forward pass that has kernels of its own
    def _draw(
        self, tokens: Tensor, generator: torch.Generator | None, max_gap: int, fixed: bool = False
    ) -> _Parts:
        """Random blocks of rows [R, T + 1] and what the target says about them.

        Tokens that are not learned are complements, and no labels. With `fixed`, every gap is
        max_gap tokens long, or all that there is room for.
        """
        spec, shape = self.drafter.spec, self.drafter.shape(max_gap)
        count = max(1, self.config.anchors * (tokens.shape[1] - 1) // WINDOW)
        is_learned, tokens = tokens >= 0, tokens_of(tokens)
        anchors, gaps = draw_anchors(is_learned.cpu(), count, shape, generator)
        if fixed:
            gaps = (anchors - 1).clamp(max=max_gap)
        outputs = self._target.outputs(tokens[:, :-1], spec.feature_layers)
        assert outputs.features is not None, "a drafter of whole blocks reads some"
        device = tokens.device
        blocks = cut_blocks(tokens, anchors.to(device), gaps.to(device), shape, is_learned)
        log_sums = outputs.log_sums
        if log_sums is not None:
            log_sums = gather_rows(log_sums[..., None], blocks.sources)[..., 0]
        last_hidden = gather_rows(outputs.hidden, blocks.sources)
        return _Parts(outputs.features, last_hidden, log_sums, blocks)
