# pyright: strict
"""DeepSpec's checkpoints: DSpark and DFlash for Qwen3, DSpark for Gemma4, EAGLE-3."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from specserve.drafters.spec import (
    DEEPSPEC,
    BlockSpec,
    ConfidenceSpec,
    Eagle3Spec,
    Gemma4Spec,
    Layout,
    MarkovKind,
    MarkovSpec,
)
from specserve.errors import Unsupported
from specserve.models.config import (
    DTYPES,
    Epsilon,
    Layers,
    ModelSpec,
    Positions,
    Positive,
    PositiveFloat,
    RopeSpec,
    Theta,
    convert,
    decoder_spec,
)

Config = dict[str, Any]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]


class _DSparkFile(msgspec.Struct):
    """Keys without a default are required: the format itself has none."""

    block_size: Positive
    target_layer_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    mask_token_id: NotNegative
    num_hidden_layers: Layers
    num_target_layers: Positive
    num_anchors: Positive
    markov_rank: NotNegative
    enable_confidence_head: bool
    markov_head_type: str | None = None
    confidence_head_with_markov: bool | None = None
    draft_vocab_size: Positive | None = None  # ours; then there are tables, and no head need be


class _Eagle3File(msgspec.Struct):
    target_layer_ids: Annotated[list[int], msgspec.Meta(min_length=5, max_length=5)]
    num_target_layers: Positive
    ttt_length: Positive
    draft_num_hidden_layers: int = 1
    draft_vocab_size: Positive | None = None  # as a DSpark's


class _Gemma4Rope(msgspec.Struct):
    rope_theta: Theta
    rope_type: str = "default"
    partial_rotary_factor: Fraction = 1.0


class _Gemma4Ropes(msgspec.Struct):
    full_attention: _Gemma4Rope


class _Gemma4File(msgspec.Struct):
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Layers
    num_attention_heads: Positive
    num_key_value_heads: Positive
    global_head_dim: Positive
    max_position_embeddings: Positions
    rms_norm_eps: Epsilon
    rope_parameters: _Gemma4Ropes
    attention_k_eq_v: bool = False
    num_global_key_value_heads: Positive | None = None
    final_logit_softcapping: PositiveFloat | None = None
    hidden_activation: str = "gelu_pytorch_tanh"
    hidden_size_per_layer_input: int | None = 0
    enable_moe_block: bool = False
    attention_bias: bool = False
    dtype: str = "float32"


def read_deepspec(content: Config, path: Path) -> BlockSpec:
    """Qwen3DSparkModel: DSpark, or DFlash when it has neither head."""
    decoder = decoder_spec({**content, "architectures": ["Qwen3ForCausalLM"]}, path)
    return _block_spec(content, path, decoder)


def read_gemma4(content: Config, path: Path) -> BlockSpec:
    file = convert(path, content, _Gemma4File)
    rope = file.rope_parameters.full_attention
    problems = {
        "hidden_activation": file.hidden_activation == "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": not file.hidden_size_per_layer_input,
        "enable_moe_block": not file.enable_moe_block,
        "attention_bias": not file.attention_bias,
        "rope_parameters": rope.rope_type in ("default", "proportional"),
        "dtype": file.dtype in DTYPES,
    }
    for field, supported in problems.items():
        if not supported:
            raise Unsupported(f"{path}: {field}: {content.get(field)!r} is not supported")
    num_kv_heads = file.num_key_value_heads
    if file.attention_k_eq_v and file.num_global_key_value_heads:
        num_kv_heads = file.num_global_key_value_heads
    decoder = ModelSpec(
        architecture="Gemma4DSparkModel",
        model_type="gemma4_text",
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_real_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=file.global_head_dim,
        max_position_embeddings=file.max_position_embeddings,
        rms_norm_eps=file.rms_norm_eps,
        rope=RopeSpec(rope.rope_theta, rope.rope_type, rotary_fraction=rope.partial_rotary_factor),
        qk_norm=True,
        tie_word_embeddings=False,
        eos_token_ids=(),
        dtype=file.dtype,
    )
    return _block_spec(
        content,
        path,
        decoder,
        gemma4=Gemma4Spec(keys_are_values=file.attention_k_eq_v),
        embedding_scale=file.hidden_size**0.5,
        logit_softcap=file.final_logit_softcapping,
    )


def read_eagle3(content: Config, path: Path) -> Eagle3Spec:
    file = convert(path, content, _Eagle3File)
    decoder = decoder_spec({**content, "architectures": ["Qwen3ForCausalLM"]}, path)
    if file.draft_num_hidden_layers != 1 or decoder.num_layers != 1:
        raise Unsupported(f"{path}: draft_num_hidden_layers: only 1 is supported")
    layers = tuple(file.target_layer_ids)
    return Eagle3Spec(
        decoder=decoder,
        gamma=file.ttt_length,
        feature_layers=layers,
        num_target_layers=file.num_target_layers,
        draft_vocab_size=draft_vocab_size(path, file.draft_vocab_size, decoder),
        target_hidden_size=decoder.hidden_size,
        longest=file.ttt_length,
        warnings=check_feature_layers(path, layers, file.num_target_layers),
    )


def _block_spec(
    content: Config,
    path: Path,
    decoder: ModelSpec,
    gemma4: Gemma4Spec | None = None,
    embedding_scale: float = 1.0,
    logit_softcap: float | None = None,
) -> BlockSpec:
    file = convert(path, content, _DSparkFile)
    markov = markov_spec(path, file.markov_rank, file.markov_head_type)
    layers = tuple(file.target_layer_ids)
    check_mask_token(path, file.mask_token_id, decoder)
    return BlockSpec(
        dialect=DEEPSPEC,
        decoder=decoder,
        layout=Layout.ANCHOR_FIRST,
        block_size=file.block_size,
        mask_token_id=file.mask_token_id,
        feature_layers=layers,
        num_target_layers=file.num_target_layers,
        draft_vocab_size=draft_vocab_size(path, file.draft_vocab_size, decoder),
        embeddings_stored=True,
        markov=markov,
        confidence=confidence_spec(
            path, file.enable_confidence_head, file.confidence_head_with_markov, markov
        ),
        gemma4=gemma4,
        embedding_scale=embedding_scale,
        logit_softcap=logit_softcap,
        warnings=check_feature_layers(path, layers, file.num_target_layers),
    )


def markov_spec(path: Path, rank: int, kind: str | None) -> MarkovSpec | None:
    """The Markov head that a config names; none at rank 0."""
    if rank == 0:
        return None
    if kind not in {member.value for member in MarkovKind}:
        raise Unsupported(f"{path}: markov_head_type: {kind!r} is not one of vanilla, gated, rnn")
    return MarkovSpec(MarkovKind(kind), rank)


def confidence_spec(
    path: Path, enabled: bool, with_markov: bool | None, markov: MarkovSpec | None
) -> ConfidenceSpec | None:
    if not enabled:
        return None
    if with_markov is None:
        raise Unsupported(f"{path}: confidence_head_with_markov is missing")
    if with_markov and markov is None:
        raise Unsupported(f"{path}: confidence_head_with_markov: there is no Markov head")
    return ConfidenceSpec(with_markov)


def check_feature_layers(
    path: Path, layers: tuple[int, ...], num_target_layers: int | None
) -> tuple[str, ...]:
    """Warnings about the layers whose residuals are features. Raises if one cannot exist."""
    for layer in layers:
        if layer < -1 or (num_target_layers is not None and layer >= num_target_layers):
            raise Unsupported(f"{path}: target_layer_ids: the target has no layer {layer}")
    if num_target_layers is not None and num_target_layers - 1 in layers:
        return (
            f"{path}: features include the last target layer; its raw output is used, "
            "before the final norm, as in training",
        )
    return ()


def draft_vocab_size(path: Path, size: int | None, decoder: ModelSpec) -> int:
    """Of the tokens that are drafted; all of the target's where a config names no number."""
    if size is not None and size > decoder.vocab_size:
        raise Unsupported(f"{path}: draft_vocab_size exceeds vocab_size")
    return size or decoder.vocab_size


def check_mask_token(path: Path, mask_token_id: int, decoder: ModelSpec) -> None:
    if not 0 <= mask_token_id < decoder.vocab_size:
        raise Unsupported(f"{path}: mask_token_id: {mask_token_id} is outside the vocabulary")
