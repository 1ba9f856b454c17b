"""Writes a trained decoder as a Hugging Face folder: weights, configuration, tokenizer."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draft_node.training import tokenizer
from draft_node.training.decoder import DecoderConfig

CHECKSUMS = "SHA256SUMS"


def hf_config(shape: DecoderConfig, end_id: int, pad_id: int) -> dict[str, object]:
    """config.json of a Qwen3 model of this shape."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        # Twice: transformers 5 reads rope_parameters, older readers rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": shape.num_hidden_layers,
        "layer_types": ["full_attention"] * shape.num_hidden_layers,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
    }


def write_model(
    weights: dict[str, Tensor], shape: DecoderConfig, tokenizer_folder: Path, out: Path
) -> None:
    """Write the folder. model.safetensors comes last and atomically: who sees it can load it."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(tokenizer_folder.iterdir()):
        shutil.copyfile(path, out / path.name)
    vocabulary = json.loads((out / "tokenizer.json").read_text())["added_tokens"]
    ids = {entry["content"]: entry["id"] for entry in vocabulary}
    end_id, pad_id = ids[tokenizer.END_OF_TEXT], ids[tokenizer.PAD]
    _write_json(out / "config.json", hf_config(shape, end_id, pad_id))
    generation = {
        "do_sample": True,
        "temperature": 1.0,
        "eos_token_id": [end_id, ids[tokenizer.IM_END]],
        "pad_token_id": pad_id,
    }
    _write_json(out / "generation_config.json", generation)
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    temporary = out / "model.safetensors.tmp"
    save_file(rounded, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")


def write_checksums(folder: Path) -> None:
    """SHA256SUMS over every other file of the folder, in the format of sha256sum."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in _listed(folder)]
    (folder / CHECKSUMS).write_text("".join(lines))


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _listed(folder: Path) -> Iterable[Path]:
    return (p for p in sorted(folder.iterdir()) if p.is_file() and p.name != CHECKSUMS)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
