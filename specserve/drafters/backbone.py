"""The parallel pass of a block drafter: features to context entries, block tokens to logits.

Context entries are a layer's own keys and values of c_p = hidden_norm(fc . features), which skip
the layer's input norm. c_p is the same for every layer, so the entries of all layers are one
product. Knows nothing of heads, layouts or drawing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specserve.drafters.gemma4 import gemma4_layer
from specserve.drafters.gemma4 import layer_tensors as gemma4_tensors
from specserve.drafters.spec import BlockSpec
from specserve.drafters.weights import (
    EMBEDDING,
    LM_HEAD,
    DraftWeights,
    decoder_layer,
    draft_vocabulary,
)
from specserve.models.layers import AttentionRun, DecoderLayer, RMSNorm
from specserve.models.loader import layer_tensors
from specserve.models.parts import Linear
from specserve.models.rope import RotaryTable, rotate


class Layer(Protocol):
    def __call__(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: AttentionRun
    ) -> Tensor: ...


@dataclass(frozen=True)
class FeatureProjector:
    """fc and its norms: what the target applies to its residuals before it sends them."""

    fc: Linear
    norm: RMSNorm | None  # hidden_norm
    before: RMSNorm | None = None  # of [parts, width]: each of these parts of the residuals

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        """Concatenated residuals [N, layers * H] -> c_p [N, H]."""
        if self.before is not None:
            parts = features.view(len(features), *self.before.weight.shape)
            features = self.before(parts).flatten(1)
        projected = self.fc(features)
        return projected if self.norm is None else self.norm(projected)


@dataclass(frozen=True)
class ContextEntries:
    """c_p to the keys and values of all layers."""

    kv: Linear  # all layers' keys, then all layers' values (keys alone if they are the values)
    k_norm: RMSNorm | None  # weight [layers * kv_heads, head_dim]
    v_norm: RMSNorm | None
    head_dim: int
    keys_are_values: bool

    def __call__(self, c: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """c [N, H] -> keys, values [N, layers * kv_heads, head_dim]."""
        raw = self.kv(c).view(len(c), -1, self.head_dim)
        keys, values = (raw, raw) if self.keys_are_values else raw.chunk(2, 1)
        if self.v_norm is not None:
            values = self.v_norm(values)
        if self.k_norm is not None:
            keys = self.k_norm(keys)
        return rotate(keys, *rotary), values


@dataclass(frozen=True)
class Backbone:
    spec: BlockSpec
    projector: FeatureProjector
    entries: ContextEntries
    embedding: Tensor  # [V, H], not scaled
    layers: Sequence[Layer]
    final_norm: RMSNorm
    lm_head: Linear
    rotary: RotaryTable

    def decoder_layers(self) -> list[DecoderLayer] | None:
        """The layers, if all are those of a Qwen3 or Llama decoder."""
        found = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        return found if len(found) == len(self.layers) else None

    def embed(self, token_ids: Tensor) -> Tensor:
        """[N] -> [N, H]"""
        x = self.embedding.index_select(0, token_ids)
        scale = self.spec.embedding_scale
        return x if scale == 1 else x * scale

    def context_entries(self, c: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [N, layers * kv_heads, head_dim] of c [N, H] at positions [N]."""
        return self.entries(c, self.rotary.at(positions))

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: AttentionRun) -> Tensor:
        """Block tokens [N] at positions [N] -> [N, H] after the final norm."""
        rotary = self.rotary.at(positions)
        x = self.embed(token_ids)
        for layer in self.layers:
            x = layer(x, rotary, attention)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, draft vocabulary] float32."""
        logits = self.lm_head(hidden).float()
        cap = self.spec.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def backbone_tensors(spec: BlockSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors that `load_backbone` reads."""
    decoder, hidden = spec.decoder, spec.decoder.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(spec.feature_layers) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        EMBEDDING: (decoder.vocab_size, hidden),
        LM_HEAD: (spec.draft_vocab_size, hidden),
    }
    if spec.gemma4 is not None:
        layer = gemma4_tensors(decoder, keys_are_values=spec.gemma4.keys_are_values)
    else:
        layer = layer_tensors(decoder, decoder.intermediate_size)
    for index in range(decoder.num_layers):
        shapes.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def load_backbone(weights: DraftWeights, spec: BlockSpec, max_positions: int) -> Backbone:
    decoder, eps = spec.decoder, spec.decoder.rms_norm_eps
    layers: list[Layer] = []
    for index in range(decoder.num_layers):
        if spec.gemma4 is None:
            layers.append(decoder_layer(weights, decoder, index, f"layers.{index}."))
        else:
            keys_are_values = spec.gemma4.keys_are_values
            layers.append(gemma4_layer(weights, decoder, index, keys_are_values=keys_are_values))
    return Backbone(
        spec=spec,
        projector=load_projector(weights, eps),
        entries=_context_entries(weights, spec),
        embedding=weights.embedding(),
        layers=tuple(layers),
        final_norm=weights.norm("norm.weight", eps),
        lm_head=weights.lm_head(draft_vocabulary(weights, decoder.vocab_size)),
        rotary=RotaryTable(
            decoder.rope,
            head_dim=decoder.head_dim,
            num_positions=max_positions,  # of rows: a service drafts for no longer ones
            dtype=weights.dtype,
            device=weights.device,
        ),
    )


def load_projector(weights: DraftWeights, eps: float | None) -> FeatureProjector:
    """fc, with hidden_norm unless `eps` is None."""
    norm = None if eps is None else weights.norm("hidden_norm.weight", eps)
    return FeatureProjector(weights.linear("fc.weight"), norm)


def _context_entries(weights: DraftWeights, spec: BlockSpec) -> ContextEntries:
    decoder = spec.decoder
    keys_are_values = spec.gemma4 is not None and spec.gemma4.keys_are_values
    names = [
        f"layers.{index}.self_attn.{kind}_proj.weight"
        for kind in ("k" if keys_are_values else "kv")
        for index in range(decoder.num_layers)
    ]
    k_norm = v_norm = None
    if decoder.qk_norm:
        norms = [
            weights.tensor(f"layers.{index}.self_attn.k_norm.weight")
            for index in range(decoder.num_layers)
        ]
        rows = torch.stack(norms).repeat_interleave(decoder.num_kv_heads, dim=0)
        k_norm = RMSNorm(rows, decoder.rms_norm_eps)
    if spec.gemma4 is not None:
        ones = torch.ones(decoder.head_dim, dtype=weights.dtype, device=weights.device)
        v_norm = RMSNorm(ones, decoder.rms_norm_eps)
    return ContextEntries(
        kv=weights.linear(*names),
        k_norm=k_norm,
        v_norm=v_norm,
        head_dim=decoder.head_dim,
        keys_are_values=keys_are_values,
    )
