# pyright: strict
"""SpecForge's DSpark checkpoints, as trained or as rewritten for serving: one reading of both.

Anchor-first like DeepSpec's: the labels of a block of B slots are the B tokens after the anchor,
slot 0's included. (The sampler that comes with old exports drops that slot; engines that followed
it drafted badly, and it was mended.) What DeepSpec keeps at the top of config.json is here in
`dflash_config`, the rewriting copies the heads' keys up and renames the architecture, and
embeddings and head are the target's. Whatever makes another drafter of it is refused.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from specserve.drafters.dialect_deepspec import read_deepspec
from specserve.drafters.dialect_dflash import default_layers
from specserve.drafters.spec import BlockSpec
from specserve.errors import Unsupported
from specserve.models.config import Positive, convert

Config = dict[str, Any]

# As trained; as its configs called it before; as rewritten.
ARCHITECTURES = ("DSparkDraftModel", "DFlashDraftModel", "Qwen3DSparkModel")
_PROJECTOR = "dspark"
_NESTED = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


class _Nested(msgspec.Struct):
    projector_type: str | None = None
    attention_mode: str = "gqa"
    attention_modes: list[str] | None = None
    shift_label: bool = True
    causal: bool = False
    attention_sink_bias: bool = False
    output_multiplier: float = 1.0
    input_embedding_scale: float = 1.0
    final_logit_softcapping: float | None = None


class _SpecForgeFile(msgspec.Struct):
    vocab_size: Positive
    num_hidden_layers: Positive
    num_target_layers: Positive
    model_type: str = ""
    dflash_config: _Nested = msgspec.field(default_factory=_Nested)
    dspark_config: Config | None = None
    draft_vocab_size: Positive | None = None
    n_routed_experts: int | None = None
    num_experts: int | None = None
    is_causal: bool = False


def is_specforge(content: Config, architecture: str) -> bool:
    """Whether a config of `architecture` is SpecForge's, which only `dflash_config` tells."""
    nested: object = content.get("dflash_config")
    if architecture not in ARCHITECTURES or not isinstance(nested, dict):
        return False
    return cast(Config, nested).get("projector_type") == _PROJECTOR


def read_specforge(content: Config, path: Path) -> BlockSpec:
    """DSpark with the keys of `dflash_config`, read as DeepSpec's."""
    file = convert(path, content, _SpecForgeFile)
    _refuse(file, path)
    flat = _flattened(content, path)
    if not flat.get("markov_rank"):
        raise Unsupported(f"{path}: markov_rank: SpecForge's DSpark has a Markov head")
    if "target_layer_ids" not in flat:
        layers = default_layers(path, file.num_target_layers, file.num_hidden_layers)
        flat["target_layer_ids"] = layers
    if isinstance(kind := flat.get("markov_head_type"), str):
        flat["markov_head_type"] = kind.lower()
    flat["num_anchors"] = 1  # of training alone, which DeepSpec's format asks for
    return replace(read_deepspec(flat, path), dialect="SpecForge", embeddings_stored=False)


def _refuse(file: _SpecForgeFile, path: Path) -> None:
    nested = file.dflash_config
    if nested.projector_type != _PROJECTOR:
        raise Unsupported(
            f"{path}: dflash_config.projector_type: {nested.projector_type!r} is not "
            f"{_PROJECTOR!r}, without which nothing tells how blocks were trained"
        )
    if file.draft_vocab_size not in (None, file.vocab_size):
        raise Unsupported(
            f"{path}: draft_vocab_size: {file.draft_vocab_size} of {file.vocab_size} tokens; "
            "SpecForge's reduced vocabularies are not supported"
        )
    if file.dspark_config is not None:
        raise Unsupported(
            f"{path}: dspark_config: heads are read from dflash_config and from the top level"
        )
    problems = {
        "model_type": file.model_type != "qwen3",
        "n_routed_experts": bool(file.n_routed_experts),
        "num_experts": bool(file.num_experts),
        "is_causal": file.is_causal,
        "dflash_config.causal": nested.causal,
        "dflash_config.shift_label": not nested.shift_label,
        "dflash_config.attention_mode": nested.attention_mode.lower() not in ("gqa", "mha"),
        "dflash_config.attention_modes": nested.attention_modes is not None,
        "dflash_config.attention_sink_bias": nested.attention_sink_bias,
        "dflash_config.output_multiplier": nested.output_multiplier != 1,
        "dflash_config.input_embedding_scale": nested.input_embedding_scale != 1,
        "dflash_config.final_logit_softcapping": nested.final_logit_softcapping is not None,
    }
    for field, unsupported in problems.items():
        if unsupported:
            raise Unsupported(f"{path}: {field} is not supported in SpecForge's DSpark")


def _flattened(content: Config, path: Path) -> Config:
    """`content` with the keys of `dflash_config` at the top; null is absent.

    Where both have a key and differ nobody knows which the weights were trained with.
    """
    flat = {key: value for key, value in content.items() if value is not None}
    nested: Config = content["dflash_config"]
    for key in _NESTED:
        value = nested.get(key)
        if value is None:
            continue
        if flat.setdefault(key, value) != value:
            raise Unsupported(
                f"{path}: {key}: {flat[key]!r} at the top level, {value!r} in dflash_config"
            )
    return flat
