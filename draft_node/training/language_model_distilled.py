"""A small decoder that learns a target's distributions: what a standalone language model drafts
from.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from draft_node.training import evaluate
from draft_node.training.batches import tokens_of
from draft_node.training.decoder import EVALUATION_WINDOW, Decoder, DecoderConfig, FrozenEmbeddings
from draft_node.training.device import stays_eager
from draft_node.training.draft_vocabulary import DraftVocabulary
from draft_node.training.frozen_target import FrozenTarget

_EVALUATED_ROWS = 8  # at once, at most
_EVALUATED_LENGTH = 256  # tokens of a row
_MAX_LOGITS = 1 << 25  # at once


class DistilledDecoder(Decoder):
    """`Trainable`: cross-entropy with the target's distribution for a `share`, with the text for
    the rest.

    Acceptance is how much of the two distributions overlaps, so it is the distribution that is
    worth learning; the gradient is that of KL(target || draft).
    """

    def __init__(
        self,
        config: DecoderConfig,
        target: FrozenTarget,
        share: float,
        *,
        owns_embeddings: bool = True,
        draft_ids: Tensor | None = None,
    ) -> None:
        """`draft_ids` [DV]: of a model with the target's embeddings, the tokens that it drafts."""
        vocabulary = DraftVocabulary(target, draft_ids)
        frozen = None if owns_embeddings else FrozenEmbeddings(target.embedding, vocabulary.head)
        super().__init__(config, frozen)
        self.target, self.vocabulary, self._share = target, vocabulary, share
        self.owns_embeddings = owns_embeddings

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """Nats a token that is learned. token_ids and labels [B, T].

        Of tokens that are not drafted the text says nothing, and the target's distribution is cut.
        """
        # First: what is compiled behind it is then one piece.
        known = self._distributions(token_ids)[0] if self._share else None
        labels = labels.flatten()
        learned, columns = labels >= 0, self.vocabulary.labels(tokens_of(labels))
        log_probs = self(token_ids).flatten(0, 1).float().log_softmax(-1)
        told = log_probs.gather(-1, columns.clamp(min=0)[:, None])[:, 0]
        nats = -told.masked_fill(columns < 0, 0)
        if known is not None:
            nats = torch.lerp(nats, -(known * log_probs).sum(-1), self._share)
        return (nats * learned).sum() / learned.sum().clamp(min=1)

    @stays_eager  # a forward pass that has kernels of its own
    @torch.no_grad()
    def _distributions(self, token_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target's probabilities of the token after each, as `DraftVocabulary.target_probs`:
        of those that are drafted [B * T, DV] float32, and of all others together [B * T].
        """
        outputs = self.target.outputs(token_ids, ())
        log_sums = None if outputs.log_sums is None else outputs.log_sums.flatten()
        return self.vocabulary.target_probs(outputs.hidden.flatten(0, 1), log_sums)

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Nats a token of each held-out stream, and the share of its drafts that would stand.

        The nats are those of the tokens that are drafted.
        """
        figures: dict[str, float] = {}
        for domain, stream in streams.items():
            length = min(EVALUATION_WINDOW, self.config.max_position_embeddings, len(stream) - 1)
            labels = self.vocabulary.labels
            rows = self._rows_at_once(length)
            figures[domain] = evaluate.stream_loss(self, stream, length, rows, labels)
            figures[f"{domain} accepted"] = self.acceptance(stream)
        return figures

    @torch.no_grad()
    def acceptance(self, stream: np.ndarray) -> float:
        """Mean overlap of the two distributions at temperature 1 over a stream's windows, where
        the token behind is one that is learned.
        """
        length = min(_EVALUATED_LENGTH, len(stream) - 1, self.config.max_position_embeddings)
        starts = range(0, len(stream) - length, length)
        windows = np.stack([stream[s : s + length + 1] for s in starts]).astype(np.int64)
        rows = torch.from_numpy(windows).to(self.target.device)
        overlaps: list[Tensor] = []
        for part in rows.split(self._rows_at_once(length)):
            read, learned = tokens_of(part[:, :-1]), part[:, 1:].flatten() >= 0
            drafted = self(read).flatten(0, 1).float().softmax(-1)
            known, _ = self._distributions(read)
            overlaps.append(torch.minimum(drafted, known).sum(-1)[learned])
        return float(torch.cat(overlaps).mean())

    def _rows_at_once(self, length: int) -> int:
        most = _MAX_LOGITS // (length * self.config.vocab_size)
        return min(_EVALUATED_ROWS, max(1, most))


def micro_tokens(vocab_size: int, tokens_per_step: int) -> int:
    """Tokens whose distributions, the target's and the draft's, fit in memory at once."""
    return min(tokens_per_step, max(256, _MAX_LOGITS // vocab_size))
