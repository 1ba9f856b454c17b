"""EAGLE-3's tensors: what checkpoints of any supported dialect hold, and drafters made of them."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from specserve.drafters.backbone import ContextEntries, FeatureProjector
from specserve.drafters.dialect_eagle3 import default_layers
from specserve.drafters.eagle3 import Eagle3Decoder, Eagle3Drafter
from specserve.drafters.spec import Eagle3Spec, FeaturesNorm
from specserve.drafters.weights import (
    EMBEDDING,
    LM_HEAD,
    TABLE_DTYPES,
    DraftWeights,
    decoder_layer,
    draft_vocabulary,
    table_shapes,
)
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import ModelSpec
from specserve.models.layers import RMSNorm
from specserve.models.loader import layer_tensors
from specserve.models.rope import RotaryTable

_LOG = logging.getLogger(__name__)
_TOGETHER = "input_norm.weight"
_LAYER_NAMES = ("layers.0.", "midlayer.")


def eagle3_tensors(spec: Eagle3Spec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint."""
    decoder, hidden = spec.decoder, spec.decoder.hidden_size
    num_layers, wide = len(spec.feature_layers), spec.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (decoder.vocab_size, hidden),
        LM_HEAD: (spec.draft_vocab_size, hidden),
        "fc.weight": (hidden, num_layers * wide),
        "norm.weight": (hidden,),
        f"{spec.layer}hidden_norm.weight": (hidden,),
    }
    if spec.features_norm is FeaturesNorm.TOGETHER:
        shapes[_TOGETHER] = (num_layers * wide,)
    elif spec.features_norm is FeaturesNorm.APART:
        shapes |= dict.fromkeys(_apart(num_layers), (wide,))
    for name, shape in layer_tensors(decoder, decoder.intermediate_size).items():
        is_wide = name.startswith(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        shapes[f"{spec.layer}{name}"] = (shape[0], 2 * shape[1]) if is_wide else shape
    return shapes


def with_usual_layers(folder: Path, spec: Eagle3Spec, target: ModelSpec | None) -> Eagle3Spec:
    """`spec` with the layers that EAGLE-3 reads of `target`, where the checkpoint names none."""
    if spec.feature_layers:
        return spec
    if target is None:
        raise Unsupported(f"{folder}: names no layers of the target, and none is given")
    layers = default_layers(target.num_real_layers)
    if layers[0] >= layers[1] or layers[1] >= layers[2]:
        raise Unsupported(
            f"{folder}: eagle_aux_hidden_state_layer_ids: not given, and the usual ones do not "
            f"exist in a target of {target.num_real_layers} layers"
        )
    _LOG.info("%s names no layers of the target: %s are read, EAGLE-3's usual ones", folder, layers)
    return replace(spec, feature_layers=layers)


def as_stored(spec: Eagle3Spec, checkpoint: Checkpoint) -> Eagle3Spec:
    """What the layer is called, and whether it has norms of queries and keys, only tensors tell."""
    layer = next((p for p in _LAYER_NAMES if f"{p}hidden_norm.weight" in checkpoint), spec.layer)
    qk_norm = f"{layer}self_attn.q_norm.weight" in checkpoint
    return replace(spec, layer=layer, decoder=replace(spec.decoder, qk_norm=qk_norm))


def check_eagle3_tensors(weights: DraftWeights, spec: Eagle3Spec) -> None:
    """Raise `Unsupported` unless the checkpoint holds what `spec` describes.

    Embeddings and output head may be left to the target, where they are as large.
    """
    tables = table_shapes(spec.draft_vocab_size, spec.decoder.vocab_size)
    optional = [] if spec.reduces_vocab else [*tables]
    if weights.target is not None and spec.target_hidden_size == spec.decoder.hidden_size:
        optional += [EMBEDDING, LM_HEAD] if spec.shares_head else [EMBEDDING]
    weights.checkpoint.check(eagle3_tensors(spec) | tables, optional, TABLE_DTYPES)


def _apart(num_layers: int) -> list[str]:
    return [f"fc_norm.{place}.weight" for place in range(num_layers)]


def eagle3_projector(weights: DraftWeights, spec: Eagle3Spec) -> FeatureProjector:
    """fc, and the norm before it where there is one."""
    norm, num_layers = None, len(spec.feature_layers)
    if spec.features_norm is FeaturesNorm.TOGETHER:
        norm = weights.tensor(_TOGETHER)[None]
    elif spec.features_norm is FeaturesNorm.APART:
        norm = torch.stack([weights.tensor(name) for name in _apart(num_layers)])
    before = None if norm is None else RMSNorm(norm, spec.decoder.rms_norm_eps)
    return FeatureProjector(weights.linear("fc.weight"), None, before)


def load_eagle3(
    weights: DraftWeights, spec: Eagle3Spec, *, num_context_tokens: int, max_positions: int
) -> Eagle3Drafter:
    """The drafter of a checked checkpoint."""
    decoder, eps = spec.decoder, spec.decoder.rms_norm_eps
    target_ids = draft_vocabulary(weights, decoder.vocab_size)
    attention, k_norm = f"{spec.layer}self_attn.", None
    if decoder.qk_norm:
        weight = weights.tensor(f"{attention}k_norm.weight")
        k_norm = RMSNorm(weight.repeat(decoder.num_kv_heads, 1), eps)
    entries = ContextEntries(
        kv=weights.linear(f"{attention}k_proj.weight", f"{attention}v_proj.weight"),
        k_norm=k_norm,
        v_norm=None,
        head_dim=decoder.head_dim,
        keys_are_values=False,
    )
    made = Eagle3Decoder(
        spec=spec,
        projector=eagle3_projector(weights, spec),
        embedding=weights.embedding(),
        layer=decoder_layer(weights, decoder, 0, spec.layer),
        hidden_norm=weights.norm(f"{spec.layer}hidden_norm.weight", eps),
        entries=entries,
        final_norm=weights.norm("norm.weight", eps),
        lm_head=weights.lm_head(target_ids),
        rotary=RotaryTable(
            decoder.rope,
            head_dim=decoder.head_dim,
            num_positions=max_positions + spec.gamma,
            dtype=weights.dtype,
            device=weights.device,
        ),
    )
    chains = weights.backend.feature_chains(made, num_tokens=num_context_tokens)
    return Eagle3Drafter(made, chains, target_ids=target_ids)
