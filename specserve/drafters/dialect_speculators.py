# pyright: strict
"""vllm-project/speculators checkpoints of DSpark and DFlash.

Three conventions differ from DeepSpec's: feature layers are counted by the input they feed, the
draft vocabulary may be a part of the target's, and the layout is a key that old files lack.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from specserve.drafters.dialect_deepspec import (
    check_feature_layers,
    check_mask_token,
    confidence_spec,
    draft_vocab_size,
    markov_spec,
)
from specserve.drafters.spec import BlockSpec, Layout
from specserve.errors import Unsupported
from specserve.models.config import Positive, convert, decoder_spec

Config = dict[str, Any]


class _Method(msgspec.Struct):
    speculative_tokens: Positive | None = None


class _Methods(msgspec.Struct):
    proposal_methods: list[_Method] = []


class _SpeculatorsFile(msgspec.Struct):
    speculators_model_type: str
    transformer_layer_config: Config
    aux_hidden_state_layer_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    block_size: Positive
    mask_token_id: int
    draft_vocab_size: Positive | None = None
    markov_rank: int = 0
    markov_head_type: str | None = None
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool | None = None
    sample_from_anchor: bool | None = None
    dspark_bonus_anchor: bool | None = None
    target_hidden_size: int | None = None
    sliding_window_non_causal: bool = False
    speculators_config: _Methods = msgspec.field(default_factory=_Methods)


def read_speculators(content: Config, path: Path) -> BlockSpec:
    kind = content["speculators_model_type"]
    if kind not in ("dspark", "dflash"):
        raise Unsupported(
            f"{path}: speculators_model_type: {kind!r} is not one of dspark, dflash, eagle3"
        )
    file = convert(path, content, _SpeculatorsFile)
    nested = file.transformer_layer_config
    if "hc_mult" in nested:
        raise Unsupported(f"{path}: transformer_layer_config.hc_mult: not supported (DeepSeek-V4)")
    nested = {"dtype": content.get("dtype"), **nested, "architectures": ["Qwen3ForCausalLM"]}
    decoder = decoder_spec(nested, path)
    if file.target_hidden_size not in (None, decoder.hidden_size):
        raise Unsupported(
            f"{path}: target_hidden_size: {file.target_hidden_size} differs from the draft's "
            f"{decoder.hidden_size}"
        )
    check_mask_token(path, file.mask_token_id, decoder)
    layout, warnings = _layout(file, path)
    if layout is Layout.FILL_IN and file.block_size < 2:
        raise Unsupported(f"{path}: block_size: a fill-in block needs at least 2 slots")
    markov = markov_spec(path, file.markov_rank, file.markov_head_type)
    # "Input of layer k + 1" is the output of layer k.
    layers = tuple(layer - 1 for layer in file.aux_hidden_state_layer_ids)
    return BlockSpec(
        dialect=f"speculators {kind}",
        decoder=decoder,
        layout=layout,
        block_size=file.block_size,
        mask_token_id=file.mask_token_id,
        feature_layers=layers,
        num_target_layers=None,
        draft_vocab_size=draft_vocab_size(path, file.draft_vocab_size, decoder),
        embeddings_stored=True,
        markov=markov,
        confidence=confidence_spec(
            path, file.enable_confidence_head, file.confidence_head_with_markov, markov
        ),
        warnings=(*warnings, *check_feature_layers(path, layers, None)),
    )


def _layout(file: _SpeculatorsFile, path: Path) -> tuple[Layout, tuple[str, ...]]:
    """An explicit key decides; else block size against drafted tokens.

    The library's class defaults do not: checkpoints without the key were trained either way.
    """
    explicit = file.sample_from_anchor
    if explicit is None and file.dspark_bonus_anchor is not None:
        explicit = not file.dspark_bonus_anchor
    methods = file.speculators_config.proposal_methods
    num_drafted = methods[0].speculative_tokens if methods else None
    inferred = {
        file.block_size: Layout.ANCHOR_FIRST,
        file.block_size - 1: Layout.FILL_IN,
    }.get(num_drafted or 0)
    if explicit is not None:
        layout = Layout.ANCHOR_FIRST if explicit else Layout.FILL_IN
        if inferred in (None, layout):
            return layout, ()
        return layout, (
            f"{path}: sample_from_anchor says {layout.value}, speculative_tokens {num_drafted} "
            f"of block_size {file.block_size} {inferred.value}; the key was followed",
        )
    if inferred is None:
        raise Unsupported(
            f"{path}: sample_from_anchor is missing and nothing tells how blocks were trained; "
            f"write sample_from_anchor into that file: true, or false if the first of "
            f"{file.block_size} slots is not drafted"
        )
    return inferred, (
        f"{path}: sample_from_anchor is missing; {inferred.value} was taken from "
        "speculative_tokens and block_size. If accept lengths stay near 1, it is the other one: "
        f"write sample_from_anchor: {str(inferred is not Layout.ANCHOR_FIRST).lower()} into it",
    )
