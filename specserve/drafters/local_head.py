"""DeLS-Spec local heads: a small model of the drafted tokens, added to any DFlash's logits.

The drafter alone predicts the first token. From the second on, logits are
long + alpha * short - beta * log prior, where `short` sees drafted tokens only, never the anchor.
alpha is part of the output weights and the prior is subtracted from all slots at once, so a slot
costs one recurrent cell and two products of rank size.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specserve.backends.base import Backend
from specserve.drafters.serial_head import SerialHead, SerialRun
from specserve.drafters.spec import LocalHeadKind, LocalHeadSpec
from specserve.drafters.weights import DraftWeights, TargetWeights
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.parts import Linear

UNIGRAM_COUNTS = "unigram_counts"  # [V] int64: tokens of the training text
DEFAULT_WEIGHT = 0.3  # alpha and beta of the paper


@dataclass(frozen=True)
class LocalHeadOptions:
    """How strongly a head counts, and what its checkpoint may leave open."""

    alpha: float | None = None  # None: as the checkpoint says, or else `DEFAULT_WEIGHT`
    beta: float | None = None
    kind: LocalHeadKind | None = None  # where a checkpoint holds both; GRU by default
    counts: Tensor | None = None  # [V], where it has no `unigram_counts`


def log_prior(counts: Tensor) -> Tensor:
    """Log probabilities of tokens counted [V], one added to each count: float32."""
    smoothed = counts.double() + 1
    return (smoothed / smoothed.sum()).log().float()


@dataclass(frozen=True)
class GruHead:
    embedding: Tensor  # [V, E], the target's
    input_weight: Tensor  # [3G, E], gates in torch's order
    state_weight: Tensor  # [3G, G]
    to_rank: Linear
    silu: bool
    output: Linear  # [B, r] -> [B, V], times alpha
    prior: Tensor | None  # [V] float32: beta * log prior

    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        state = self.state_weight.new_zeros(len(hidden), self.state_weight.shape[1])
        return GruHead.Run(self, _without_prior(base_logits, self.prior), state)

    @dataclass
    class Run:
        head: "GruHead"
        base_logits: Tensor
        state: Tensor  # [B, G]

        def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
            if slot == 0:
                return self.base_logits[:, 0]
            head = self.head
            x = head.embedding.index_select(0, previous_ids)
            self.state = torch.gru_cell(x, self.state, head.input_weight, head.state_weight)
            return self.base_logits[:, slot].add_(head.output(head.rank_state(self.state)))

    def rank_state(self, state: Tensor) -> Tensor:
        """[B, G] -> [B, r]"""
        rank = self.to_rank(state)
        return torch.nn.functional.silu(rank) if self.silu else rank


@dataclass(frozen=True)
class LocalMarkovHead:
    embedding: Tensor  # [V, r]
    output: Linear  # [B, r] -> [B, V], times alpha
    prior: Tensor | None

    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        return LocalMarkovHead.Run(self, _without_prior(base_logits, self.prior))

    @dataclass(frozen=True)
    class Run:
        head: "LocalMarkovHead"
        base_logits: Tensor

        def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
            if slot == 0:
                return self.base_logits[:, 0]
            e = self.head.embedding.index_select(0, previous_ids)
            return self.base_logits[:, slot].add_(self.head.output(e))


def _without_prior(base_logits: Tensor, prior: Tensor | None) -> Tensor:
    if prior is not None:
        base_logits[:, 1:] -= prior
    return base_logits


_MARKOV_EMBEDDING = ("embedding_weight", "markov.embedding_weight")
_MARKOV_OUTPUT = ("lm_head_weight", "markov.lm_head_weight")


def load_local_head(
    folder: Path,
    spec: LocalHeadSpec,
    *,
    target: TargetWeights,
    dtype: torch.dtype,
    backend: Backend,
    options: LocalHeadOptions | None = None,
    target_ids: Tensor | None = None,
) -> SerialHead:
    """The head in `folder`. Raises `Unsupported` for a checkpoint that does not fit the target.

    Without unigram counts beta must be 0. `target_ids` [DV]: the tokens of the drafter's logits,
    where it knows a part of the target's; the head is cut to them.
    """
    options = options or LocalHeadOptions()
    alpha = _first(options.alpha, spec.alpha)
    if spec.vocab_size != target.spec.vocab_size:
        raise Unsupported(
            f"{folder}: vocab_size: {spec.vocab_size}, the target has {target.spec.vocab_size}"
        )
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        weights = DraftWeights(checkpoint, dtype=dtype, backend=backend, target=target)
        kind = _checked_kind(weights, spec, options.kind)
        counts = options.counts
        if UNIGRAM_COUNTS in checkpoint:
            counts = checkpoint.read(UNIGRAM_COUNTS)
        prior = _prior(folder, counts, _first(options.beta, spec.beta), backend.device)
        known = slice(None) if target_ids is None else target_ids
        prior = None if prior is None else prior[known]
        if kind is LocalHeadKind.GRU:
            output = _gru_output(weights, spec)[known]
            return _gru_head(weights, spec, weights.packed(output * alpha), prior)
        embedding = weights.tensor(_stored(checkpoint, _MARKOV_EMBEDDING))
        output = weights.tensor(_stored(checkpoint, _MARKOV_OUTPUT))[known]
        return LocalMarkovHead(embedding, weights.packed(output * alpha), prior)


def _first(asked: float | None, stored: float | None) -> float:
    """A fusion weight: as asked for, as stored, or the paper's."""
    chosen = stored if asked is None else asked
    return DEFAULT_WEIGHT if chosen is None else chosen


def _gru_output(weights: DraftWeights, spec: LocalHeadSpec) -> Tensor:
    """[V, r], of all the target's tokens"""
    if not spec.through_target_head:
        return weights.tensor("low_rank_lm_head.weight")
    to_hidden = weights.tensor("rank_to_hidden.weight")
    return weights.target_lm_head().float() @ to_hidden.float()


def _gru_head(
    weights: DraftWeights, spec: LocalHeadSpec, output: Linear, prior: Tensor | None
) -> GruHead:
    target = weights.target
    assert target is not None, "a local head has a target"
    if spec.embed_dim != target.spec.hidden_size:
        raise Unsupported(
            f"{weights.checkpoint.folder}: embed_dim: {spec.embed_dim}, the target's embeddings "
            f"have {target.spec.hidden_size}"
        )
    return GruHead(
        embedding=weights.embedding(),
        input_weight=weights.tensor("prefix_gru.weight_ih_l0"),
        state_weight=weights.tensor("prefix_gru.weight_hh_l0"),
        to_rank=weights.linear("rank_proj.weight"),
        silu=spec.silu,
        output=output,
        prior=prior,
    )


def _prior(folder: Path, counts: Tensor | None, beta: float, device: torch.device) -> Tensor | None:
    if beta == 0:
        return None
    if counts is None:
        problem = f"{UNIGRAM_COUNTS} is missing; without it beta has to be 0"
        raise Unsupported(f'{folder}: {problem}: write "beta": 0 into its config.json')
    return (beta * log_prior(counts)).to(device)


def _stored(checkpoint: Checkpoint, names: tuple[str, str]) -> str:
    for name in names:
        if name in checkpoint:
            return name
    raise Unsupported(f"{checkpoint.folder}: tensor {names[0]} is missing")


def _checked_kind(
    weights: DraftWeights, spec: LocalHeadSpec, asked: LocalHeadKind | None
) -> LocalHeadKind:
    """Which head to take: the one asked for, or else the recurrent one where it is stored."""
    vocab, rank, width = spec.vocab_size, spec.rank, spec.hidden_dim
    gru: dict[str, tuple[int, ...]] = {
        "prefix_gru.weight_ih_l0": (3 * width, spec.embed_dim),
        "prefix_gru.weight_hh_l0": (3 * width, width),
        "rank_proj.weight": (rank, width),
    }
    if spec.through_target_head and weights.target is not None:
        gru["rank_to_hidden.weight"] = (weights.target.spec.hidden_size, rank)
    else:
        gru["low_rank_lm_head.weight"] = (vocab, rank)
    markov = dict.fromkeys((*_MARKOV_EMBEDDING, *_MARKOV_OUTPUT), (vocab, rank))
    checkpoint = weights.checkpoint
    has_gru, has_markov = (any(name in checkpoint for name in names) for names in (gru, markov))
    is_markov = asked is LocalHeadKind.MARKOV or (asked is None and has_markov and not has_gru)
    optional = [*markov, UNIGRAM_COUNTS]
    if is_markov and not has_gru:
        optional += gru
    checkpoint.check({**gru, **markov, UNIGRAM_COUNTS: (vocab,)}, optional, {UNIGRAM_COUNTS: "I64"})
    return LocalHeadKind.MARKOV if is_markov else LocalHeadKind.GRU
