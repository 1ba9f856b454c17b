"""config.json of a trained drafter in DeepSpec's dialect. Knows no weights and no figures."""

from draft_node.training.losses import EAGLE3_STEP_DECAY
from draft_node.training.rotary import rope_fields
from specserve.drafters.spec import BlockSpec, Eagle3Spec
from specserve.models.config import ModelSpec


def config_json(
    spec: BlockSpec | Eagle3Spec, num_anchors: int, *, max_gap: int
) -> dict[str, object]:
    """Of Qwen3DSparkModel, where a DFlash is one without heads, or of Qwen3Eagle3Model."""
    own = _eagle3_json(spec) if isinstance(spec, Eagle3Spec) else _block_json(spec, num_anchors)
    config: dict[str, object] = {
        **own,
        **({"draft_vocab_size": spec.draft_vocab_size} if spec.reduces_vocab else {}),
        "target_layer_ids": list(spec.feature_layers),
        "num_target_layers": spec.num_target_layers,
        **_decoder_json(spec.decoder),
        "max_feature_gap": max_gap,  # ours: the longest gap it was trained to bridge
    }
    return config


def _eagle3_json(spec: Eagle3Spec) -> dict[str, object]:
    return {
        "architectures": ["Qwen3Eagle3Model"],
        "ttt_length": spec.gamma,
        "step_loss_decay": EAGLE3_STEP_DECAY,
        "draft_num_hidden_layers": spec.decoder.num_layers,
    }


def _block_json(spec: BlockSpec, num_anchors: int) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "num_anchors": num_anchors,
        "markov_rank": spec.markov.rank if spec.markov else 0,
        "enable_confidence_head": spec.confidence is not None,
    }
    if spec.markov is not None:
        config["markov_head_type"] = spec.markov.kind.value
    if spec.confidence is not None:
        config["confidence_head_with_markov"] = spec.confidence.with_markov
    return config


def _decoder_json(decoder: ModelSpec) -> dict[str, object]:
    return {
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "num_hidden_layers": decoder.num_layers,
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "max_position_embeddings": decoder.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": decoder.rms_norm_eps,
        "attention_bias": False,
        "rope_parameters": rope_fields(decoder.rope),
        "layer_types": ["full_attention"] * decoder.num_layers,
        "tie_word_embeddings": False,
    }
