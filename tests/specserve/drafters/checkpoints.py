"""Random draft checkpoints of every dialect, small, in the published formats."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from specserve.drafters.backbone import backbone_tensors
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.dspark import block_tensors
from specserve.drafters.eagle3_weights import eagle3_tensors
from specserve.drafters.load import DrafterOptions, load_drafter
from specserve.drafters.spec import BlockSpec, DraftSpec, Eagle3Spec
from specserve.drafters.weights import TargetWeights
from tests.backends.chosen import BACKEND
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

DECODER = {
    **{key: QWEN3[key] for key in QWEN3 if key not in ("tie_word_embeddings", "eos_token_id")},
    "model_type": "qwen3",
    "num_hidden_layers": 2,
}
DSPARK: dict[str, Any] = {
    **DECODER,
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 4,
    "target_layer_ids": [-1, 0],
    "mask_token_id": 63,
    "num_target_layers": 2,
    "num_anchors": 8,
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DFLASH: dict[str, Any] = {
    **DSPARK,
    "markov_rank": 0,
    "markov_head_type": None,
    "enable_confidence_head": False,
    "confidence_head_with_markov": None,
}
ZLAB: dict[str, Any] = {
    **DECODER,
    "architectures": ["DFlashDraftModel"],
    "block_size": 5,
    "num_target_layers": 2,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [0]},
}
SPECFORGE: dict[str, Any] = {
    **DECODER,
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "block_size": 4,
    "num_target_layers": 2,
    "dflash_config": {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "target_layer_ids": [-1, 0],
        "mask_token_id": 63,
        "markov_rank": 6,
        "markov_head_type": "vanilla",
        "confidence_head_alpha": 1.0,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "transformer_layer_config": {**DECODER, "architectures": None},
    "aux_hidden_state_layer_ids": [0, 1],
    "block_size": 4,
    "mask_token_id": 63,
    "draft_vocab_size": 40,
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": False,
    "sample_from_anchor": True,
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]},
}
EAGLE3: dict[str, Any] = {
    **DECODER,
    "architectures": ["Qwen3Eagle3Model"],
    "num_hidden_layers": 1,
    "draft_num_hidden_layers": 1,
    "target_layer_ids": [-1, -1, 0, 0, 0],
    "num_target_layers": 2,
    "ttt_length": 4,
}
_LLAMA = {**{k: v for k, v in DECODER.items() if k != "architectures"}, "num_hidden_layers": 1}
SGLANG_EAGLE3: dict[str, Any] = {
    **_LLAMA,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 40,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 0], "use_aux_hidden_state": True},
}
SPECULATORS_EAGLE3: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {**_LLAMA, "model_type": "qwen3"},
    "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
    "draft_vocab_size": 48,
    "norm_before_residual": True,
    "fc_norm": True,
    "norm_output": True,
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]},
}
LOCAL_HEAD: dict[str, Any] = {
    "vocab_size": 64,
    "embed_dim": 32,
    "gru_hidden_dim": 12,
    "low_rank_dim": 5,
    "lm_head_mode": "low_rank",
    "rank_activation": "silu",
}

GRU_HEAD = {
    "prefix_gru.weight_ih_l0": (36, 32),
    "prefix_gru.weight_hh_l0": (36, 12),
    "rank_proj.weight": (5, 12),
    "low_rank_lm_head.weight": (64, 5),
}


def write_target(folder: Path, **changes: Any) -> TargetWeights:
    return TargetWeights.of(write_checkpoint(folder, QWEN3, **changes))


def write_config(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """config.json with `changes` applied; a change to None removes the field."""
    merged = {k: v for k, v in {**config, **changes}.items() if v is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(merged))
    return folder


def shapes_of(spec: DraftSpec) -> dict[str, tuple[int, ...]]:
    if isinstance(spec, Eagle3Spec):
        names = replace(spec, layer="midlayer.") if spec.dialect == "SGLang" else spec
        return eagle3_tensors(names)
    assert isinstance(spec, BlockSpec)
    shapes = block_tensors(spec)
    assert backbone_tensors(spec).keys() <= shapes.keys()
    if not spec.embeddings_stored:
        del shapes["embed_tokens.weight"], shapes["lm_head.weight"]
    return shapes


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.2
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if "norm" in name:
            tensors[name] += 1
    return tensors


def write_drafter(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A checkpoint of what `config` with `changes` asks for."""
    write_config(folder, config, **changes)
    spec = read_draft_spec(folder)
    tensors = random_weights(shapes_of(spec))
    if isinstance(spec, BlockSpec | Eagle3Spec) and spec.reduces_vocab:
        tensors |= _tables(spec.draft_vocab_size, spec.decoder.vocab_size)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_part(folder: Path, num_drafted: int = 40, **changes: Any) -> Path:
    """A language model without embedding and head, which drafts so many of the target's tokens."""
    ours = {"target_embeddings": True, "draft_vocab_size": num_drafted}
    write_checkpoint(folder, QWEN3, specserve=ours, num_hidden_layers=1, **changes)
    tables = _tables(num_drafted, QWEN3["vocab_size"])
    change_tensors(folder, **{"model.embed_tokens.weight": None}, **tables)
    return folder


def _tables(num_drafted: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """Of random tokens."""
    ids = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(1))
    ids = ids[:num_drafted].sort().values
    listed = torch.zeros(vocab_size, dtype=torch.bool)
    listed[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": listed}


def write_head(folder, shapes, **changes):
    write_config(folder, LOCAL_HEAD, **changes)
    vocab_size = (LOCAL_HEAD | changes)["vocab_size"]
    counts = torch.arange(vocab_size or 64) % 7
    save_file({**random_weights(shapes), "unigram_counts": counts}, folder / "model.safetensors")
    return folder


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Rewrite the weights with tensors replaced, added or, where None, removed."""
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def options(**changes: Any) -> DrafterOptions:
    settings: dict[str, Any] = {
        "dtype": torch.float32,
        "backend": BACKEND,
        "num_context_tokens": 512,
        "max_positions": 128,
    }
    return DrafterOptions(**{**settings, **changes})


def make_drafter(folder: Path, config: dict[str, Any], target: TargetWeights | None, **changes):
    """Write a checkpoint and load it."""
    return load_drafter(write_drafter(folder, config, **changes), target, options())
