"""Reading a draft checkpoint: placed tensors, and what may be shared with the target.

That a drafter knows only a part of the target's tokens is told by tables among its tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specserve.backends.base import Backend
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import ModelSpec, read_spec
from specserve.models.layers import DecoderLayer, RMSNorm
from specserve.models.parts import Gate, Linear
from specserve.models.transformer import Transformer

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"
# What published checkpoints carry and no forward pass reads.
IGNORED = (
    "mask_embedding",
    "mask_embedding.weight",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)


@dataclass(frozen=True)
class TargetWeights:
    """The target that a drafter drafts for: its folder and, if it runs in this process, itself."""

    folder: Path
    spec: ModelSpec
    model: Transformer | None = None

    @staticmethod
    def of(folder: Path, model: Transformer | None = None) -> "TargetWeights":
        return TargetWeights(folder, read_spec(folder), model)

    def read(self, name: str) -> Tensor:
        """`EMBEDDING` or `LM_HEAD` as stored; a tied head is the embedding."""
        with Checkpoint(self.folder) as checkpoint:
            return checkpoint.read(self.stored_name(name))

    def stored_name(self, name: str) -> str:
        """Of the tensor that `read` reads."""
        return EMBEDDING if self.spec.tie_word_embeddings else name


class DraftWeights:
    """Tensors of one open checkpoint as a drafter wants them that `backend` computes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        backend: Backend,
        target: TargetWeights | None,
        bits: int = 32,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.backend = backend
        self.device = torch.empty(0, device=backend.device).device  # "cuda" becomes "cuda:0"
        self.target = target
        # Nothing that is verified depends on the bits of a draft: the fastest kernels will do.
        self._parts = backend.layer_parts(dtype, input_bits=bits)
        self._placed: dict[str, Tensor] = {}  # of the target's, which may be both at once

    def tensor(self, name: str) -> Tensor:
        """Raises `Unsupported` for one that holds NaN or infinity, which no draft survives."""
        placed = self._place(self.checkpoint.read(name))
        refuse_non_finite(self.checkpoint.folder, name, placed)
        return placed

    def table(self, name: str) -> Tensor:
        """A tensor of ids or flags, in its own dtype."""
        return self.checkpoint.read(name).to(self.device)

    def linear(self, *names: str) -> Linear:
        """The product with several weights stacked."""
        return self._parts.linear([self.tensor(name) for name in names])

    def packed(self, weight: Tensor) -> Linear:
        """The product with a weight [out, in] made from others."""
        return self._parts.linear([self._place(weight)])

    def target_lm_head(self) -> Tensor:
        """The target's output weights [V, H]."""
        return self._required(self._of_target(LM_HEAD))

    def gate(self, width: int) -> Gate:
        return self._parts.gate(width)

    def norm(self, name: str, eps: float) -> RMSNorm:
        return RMSNorm(self.tensor(name), eps)

    def embedding(self) -> Tensor:
        """The token embeddings [V, H]: the target's own memory wherever they are equal to it."""
        model = None if self.target is None else self.target.model
        stored = self.tensor(EMBEDDING) if EMBEDDING in self.checkpoint else None
        if stored is None:
            return self._target_embedding(model)
        if model is not None and self._equals(stored, model.embedding):
            return model.embedding
        return stored

    def lm_head(self, target_ids: Tensor | None) -> Linear:
        """Hidden states to logits over the draft's vocabulary, `target_ids` [DV] or (None) all.

        Shared as `embedding` if it is whole, unless a copy of 8 bits is to be had, which takes half
        as long to read.
        """
        stored = self.tensor(LM_HEAD) if LM_HEAD in self.checkpoint else None
        if self.target is None:
            return self._parts.linear([self._required(stored, LM_HEAD)])
        if target_ids is not None:
            rows = self.target_lm_head()[target_ids] if stored is None else stored
            return self._parts.linear([rows])
        model, theirs = self.target.model, self.target_lm_head()
        weight = theirs if stored is None else stored
        whole = model is not None and model.parallel.size == 1
        shareable = model is not None and whole and self._fits(model.embedding)
        is_theirs = stored is None or (shareable and self._equals(stored, theirs))
        if model is not None and shareable and is_theirs and not self._parts.quantizes(weight):
            return model.lm_head
        return self._parts.linear([weight])

    def _target_embedding(self, model: Transformer | None) -> Tensor:
        if model is not None and self._fits(model.embedding):
            return model.embedding
        return self._required(self._of_target(EMBEDDING))

    def _of_target(self, name: str) -> Tensor | None:
        if self.target is None:
            return None
        stored = self.target.stored_name(name)
        if stored not in self._placed:
            self._placed[stored] = self._place(self.target.read(name))
        return self._placed[stored]

    def _required(self, tensor: Tensor | None, name: str = EMBEDDING) -> Tensor:
        if tensor is None:
            raise Unsupported(
                f"{self.checkpoint.folder}: {name} is the target's, and none is given"
            )
        return tensor

    def _fits(self, theirs: Tensor) -> bool:
        return theirs.dtype == self.dtype and theirs.device == self.device

    def _equals(self, ours: Tensor, theirs: Tensor) -> bool:
        return self._fits(theirs) and torch.equal(ours, theirs)

    def _place(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype)


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite.

    By their extremes, through which NaN passes: 100 MB take 10 to 25 ms of one core, where asking
    every element takes up to 840.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def refuse_non_finite(folder: Path, name: str, tensor: Tensor) -> None:
    """Raise `Unsupported` naming the tensor unless all of its weights are finite numbers."""
    if not is_finite(tensor):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise Unsupported(f"{folder}: tensor {name}: NaN or infinity among its weights, as {kind}")


def decoder_layer(weights: DraftWeights, spec: ModelSpec, index: int, prefix: str) -> DecoderLayer:
    """Layer `index` of a Qwen3 or Llama decoder; its products take inputs of the stored width.

    `prefix`: what the names of its tensors begin with.
    """
    name: Callable[[str], str] = f"{prefix}{{}}.weight".format
    eps, heads, kv_heads = spec.rms_norm_eps, spec.num_heads, spec.num_kv_heads
    qk_norm = None
    if spec.qk_norm:
        q = weights.tensor(name("self_attn.q_norm")).expand(heads, -1)
        k = weights.tensor(name("self_attn.k_norm")).expand(kv_heads, -1)
        qk_norm = RMSNorm(torch.cat([q, k]), eps)
    return DecoderLayer(
        index=index,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=spec.head_dim,
        input_norm=weights.norm(name("input_layernorm"), eps),
        qkv=weights.linear(*(name(f"self_attn.{kind}_proj") for kind in "qkv")),
        qk_norm=qk_norm,
        o_proj=weights.linear(name("self_attn.o_proj")),
        mlp_norm=weights.norm(name("post_attention_layernorm"), eps),
        gate_up=weights.linear(name("mlp.gate_proj"), name("mlp.up_proj")),
        gate=weights.gate(spec.intermediate_size),
        down_proj=weights.linear(name("mlp.down_proj")),
    )


OFFSETS = "d2t"  # [DV] int64: target id - draft id
IN_DRAFT = "t2d"  # [V] bool: whether a target id has a draft id
TABLE_DTYPES = {OFFSETS: "I64", IN_DRAFT: "BOOL"}


def table_shapes(draft_vocab_size: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
    return {OFFSETS: (draft_vocab_size,), IN_DRAFT: (vocab_size,)}


def draft_vocabulary(weights: DraftWeights, vocab_size: int) -> Tensor | None:
    """Target id of every draft id, [DV]; None where all of the target's tokens are known.

    On disk they are offsets, and a bitmap that must agree. Raises `Unsupported`.
    """
    if OFFSETS not in weights.checkpoint:
        return None
    offsets = weights.table(OFFSETS)
    ids = offsets + torch.arange(len(offsets), device=offsets.device)
    in_range = bool(((ids >= 0) & (ids < vocab_size)).all())
    if not in_range or len(ids.unique()) != len(ids):
        raise Unsupported(
            f"{weights.checkpoint.folder}: {OFFSETS}: not offsets to distinct target ids"
        )
    if IN_DRAFT in weights.checkpoint:
        listed = weights.table(IN_DRAFT).nonzero().flatten()
        if not torch.equal(listed, ids.sort().values):
            raise Unsupported(f"{weights.checkpoint.folder}: {IN_DRAFT} contradicts {OFFSETS}")
    return ids
