"""A DeLS local head that can be trained: a language model of what was drafted, and nothing before.

Parameter names equal those of published heads, so a state dict is a checkpoint. Trained on text
alone: rows are cut into windows, each read from an empty state, as a block is (DeLS-Spec eq. 9).
Blocks are drafted of answers: behind a token that is not learned, a window has no labels.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from draft_node.training.batches import tokens_of
from draft_node.training.frozen_target import FrozenTarget
from specserve.drafters.spec import LocalHeadSpec

DECAY = 7.0  # slots after which a prediction counts 1/e of the first, as published
_OUTPUT_SCALE = 0.5  # first logits are about as large
_EVALUATED_WINDOWS = 256  # at once


class LocalHeadModel(nn.Module):
    """`Trainable` of the head that `spec` describes: a GRU, or without a width a Markov head."""

    def __init__(self, spec: LocalHeadSpec, target: FrozenTarget, window: int) -> None:
        """`window` tokens are a block; the first is the drafter's, the others are predicted."""
        super().__init__()
        if window < 2:
            raise ValueError("a window of one token has nothing to predict")
        self.spec, self.window = spec, window
        self._embedding = target.embedding.float()  # [V, H]
        self._lm_head = target.lm_head.float()  # [V, H]
        self.prefix_gru = self.rank_proj = self.low_rank_lm_head = self.rank_to_hidden = None
        if not spec.hidden_dim:
            self.embedding_weight = nn.Parameter(torch.empty(spec.vocab_size, spec.rank))
            self.lm_head_weight = nn.Parameter(torch.empty(spec.vocab_size, spec.rank))
            return
        self.prefix_gru = nn.GRU(spec.embed_dim, spec.hidden_dim, bias=False, batch_first=True)
        self.rank_proj = nn.Linear(spec.hidden_dim, spec.rank, bias=False)
        if spec.through_target_head:
            self.rank_to_hidden = nn.Linear(spec.rank, spec.embed_dim, bias=False)
        else:
            self.low_rank_lm_head = nn.Linear(spec.rank, spec.vocab_size, bias=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Output weights start as the target's, reduced to the rank; others at their width's scale.

        After 100 steps of 2,048 tokens that was worth a tenth of a nat over random ones.
        """
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            drawn = torch.empty(parameter.shape).normal_(generator=generator)
            parameter.copy_(drawn * parameter.shape[1] ** -0.5)
        rank, small = self.spec.rank, _OUTPUT_SCALE * self.spec.rank**-0.5
        if self.prefix_gru is None:
            self.embedding_weight.copy_(_principal(self._embedding, rank))
            self.lm_head_weight.copy_(_principal(self._lm_head, rank) * small)
            return
        # The input is as small as the target's embeddings are.
        input_weight = self.prefix_gru.get_parameter("weight_ih_l0")
        input_weight.div_(self._embedding.square().mean().sqrt())
        if self.low_rank_lm_head is not None:
            self.low_rank_lm_head.weight.copy_(_principal(self._lm_head, rank) * small)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Windows [N, S] -> logits [N, S, V] of the token after each."""
        if self.prefix_gru is None or self.rank_proj is None:
            return F.linear(F.embedding(token_ids, self.embedding_weight), self.lm_head_weight)
        state, _ = self.prefix_gru(F.embedding(token_ids, self._embedding))
        rank = F.silu(self.rank_proj(state))
        if self.low_rank_lm_head is not None:
            return self.low_rank_lm_head(rank)
        assert self.rank_to_hidden is not None, "the target's head follows"
        return F.linear(self.rank_to_hidden(rank), self._lm_head)

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the windows of rows [B, T], later slots counting less.

        Windows tile a row from a random place on: every token stands in every slot once in a while.
        """
        # Of a row's first token nothing says whether it is learned: it is as the one behind it.
        before = torch.where(labels[:, :1] < 0, ~token_ids[:, :1], token_ids[:, :1])
        stream = torch.cat([before, labels], dim=1)
        size = min(self.window, stream.shape[1])
        first = int(torch.randint(min(size, stream.shape[1] - size + 1), ()))
        count = (stream.shape[1] - first) // size
        windows = stream[:, first : first + count * size].reshape(-1, size)
        losses = _by_slot(*self._losses(windows))
        weights = torch.exp(-torch.arange(size - 1, device=losses.device) / DECAY)
        return (losses * weights).sum() / weights.sum()

    def _losses(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Nats of every predicted token, and whether it counts: [N, S] -> [N, S - 1] each.

        Tokens that are not learned are complements; they count as little as what is behind them.
        """
        tokens = tokens_of(windows)
        logits, wanted = self(tokens[:, :-1]).float(), tokens[:, 1:]
        nats = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        counts = (windows >= 0).long().cumprod(dim=1)[:, 1:]
        return nats.view(wanted.shape), counts.bool()

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Mean nats per predicted token of each stream, all slots alike."""
        return {domain: float(self.slot_losses(s).mean()) for domain, s in streams.items()}

    @torch.no_grad()
    def slot_losses(self, stream: np.ndarray) -> Tensor:
        """Mean nats of each slot but the first over a stream's windows: [S - 1] float32.

        Of the tokens that are learned alone.
        """
        size = min(self.window, len(stream))
        count = len(stream) // size
        windows = torch.from_numpy(stream[: count * size].astype(np.int64)).view(count, size)
        parts = windows.to(self._embedding.device).split(_EVALUATED_WINDOWS)
        nats, counts = zip(*map(self._losses, parts), strict=True)
        return _by_slot(torch.cat(nats), torch.cat(counts)).cpu()


def _by_slot(nats: Tensor, counts: Tensor) -> Tensor:
    """Means of each slot over the windows in which it counts, [N, S] each -> [S]; 0 without any."""
    return (nats * counts).sum(dim=0) / counts.sum(dim=0).clamp(min=1)


def unigram_counts(
    streams: Mapping[str, np.ndarray], turns: tuple[str, ...], vocab_size: int
) -> Tensor:
    """How often each token is learned in text mixed as `turns` takes its rows: [V] int64.

    Streams differ in length; what counts is the share of the rows that come from each.
    """
    learned = {name: np.asarray(stream[stream >= 0]) for name, stream in streams.items()}
    total = sum(len(stream) for stream in learned.values())
    counts = np.zeros(vocab_size)
    for domain, stream in learned.items():
        found = np.bincount(stream.astype(np.int64), minlength=vocab_size)
        counts += found / len(stream) * (turns.count(domain) / len(turns)) * total
    return torch.from_numpy(counts.round().astype(np.int64))


def _principal(weight: Tensor, rank: int) -> Tensor:
    """[V, H] -> [V, rank]: its rows along their principal directions, of mean square 1.

    Each direction's largest entry is positive: its sign is the library's choice, another one on
    another device, and all other weights are the same there.
    """
    centred = weight - weight.mean(dim=0)
    _, directions = torch.linalg.eigh(centred.T @ centred)
    largest = directions.abs().argmax(dim=0, keepdim=True)
    directions = directions * directions.gather(0, largest).sign()
    reduced = centred @ directions.flip(1)[:, :rank]
    if reduced.shape[1] < rank:
        reduced = F.pad(reduced, (0, rank - reduced.shape[1]))
    return reduced / reduced.square().mean().sqrt().clamp(min=1e-6)
