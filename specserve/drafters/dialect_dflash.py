# pyright: strict
"""z-lab's DFlash checkpoints: fill-in blocks, the target's embeddings and head."""

from pathlib import Path
from typing import Any

import msgspec

from specserve.drafters.dialect_deepspec import check_feature_layers, check_mask_token
from specserve.drafters.spec import BlockSpec, Layout
from specserve.errors import Unsupported
from specserve.models.config import Positive, PositiveFloat, convert, decoder_spec

Config = dict[str, Any]


class _Nested(msgspec.Struct):
    mask_token_id: int | None = None
    target_layer_ids: list[int] | None = None
    block_size: Positive | None = None
    projector_type: str | None = None
    selector_rank: int | None = None
    conv_kernel_size: int | None = None
    causal: bool = False
    attention_sink_bias: bool = False
    output_multiplier: float = 1.0
    input_embedding_scale: float = 1.0
    final_logit_softcapping: PositiveFloat | None = None


class _DFlashFile(msgspec.Struct):
    num_hidden_layers: Positive
    dflash_config: _Nested = msgspec.field(default_factory=_Nested)
    block_size: Positive | None = None
    num_target_layers: Positive | None = None
    target_layer_ids: list[int] | None = None
    is_causal: bool = False


def read_dflash(content: Config, path: Path) -> BlockSpec:
    """DFlashDraftModel. Its layers are Qwen3's even for a Llama target."""
    file = convert(path, content, _DFlashFile)
    nested = file.dflash_config
    _refuse(file, path)
    for field in ("block_size", "target_layer_ids"):
        outer, inner = getattr(file, field), getattr(nested, field)
        if None not in (outer, inner) and outer != inner:
            raise Unsupported(f"{path}: {field}: {outer}, but dflash_config says {inner}")
    block_size = file.block_size or nested.block_size
    if block_size is None or block_size < 2:
        raise Unsupported(f"{path}: block_size: a fill-in block needs at least 2 slots")
    if nested.mask_token_id is None:
        raise Unsupported(f"{path}: dflash_config.mask_token_id is missing")
    decoder = decoder_spec({**content, "architectures": ["Qwen3ForCausalLM"]}, path)
    check_mask_token(path, nested.mask_token_id, decoder)
    layers = tuple(
        nested.target_layer_ids
        or file.target_layer_ids
        or default_layers(path, file.num_target_layers, file.num_hidden_layers)
    )
    return BlockSpec(
        dialect="z-lab DFlash",
        decoder=decoder,
        layout=Layout.FILL_IN,
        block_size=block_size,
        mask_token_id=nested.mask_token_id,
        feature_layers=layers,
        num_target_layers=file.num_target_layers,
        draft_vocab_size=decoder.vocab_size,
        embeddings_stored=False,
        embedding_scale=nested.input_embedding_scale,
        logit_softcap=nested.final_logit_softcapping,
        warnings=check_feature_layers(path, layers, file.num_target_layers),
    )


def _refuse(file: _DFlashFile, path: Path) -> None:
    nested = file.dflash_config
    if nested.projector_type not in (None, "dflash"):
        raise Unsupported(
            f"{path}: dflash_config.projector_type: {nested.projector_type!r} is another "
            "architecture, not DFlash"
        )
    if nested.selector_rank is not None or nested.conv_kernel_size is not None:
        raise Unsupported(f"{path}: dflash_config: a path selector makes it DFlash2, not DFlash")
    problems = {
        "is_causal": file.is_causal,
        "dflash_config.causal": nested.causal,
        "dflash_config.attention_sink_bias": nested.attention_sink_bias,
        "dflash_config.output_multiplier": nested.output_multiplier != 1,
    }
    for field, unsupported in problems.items():
        if unsupported:
            raise Unsupported(f"{path}: {field} is not supported")


def default_layers(path: Path, total: int | None, count: int) -> list[int]:
    """Of a target of `total` layers, for a drafter of `count`: evenly spread from layer 1 to the
    fourth from the end, which is what z-lab's code does, and SpecForge's."""
    if total is None:
        raise Unsupported(f"{path}: neither target_layer_ids nor num_target_layers is given")
    if count == 1:
        return [total // 2]
    return [round(1 + i * (total - 4) / (count - 1)) for i in range(count)]
