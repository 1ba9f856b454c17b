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
from draft_node.training.rotary import rope_fields
from specserve.models.config import GENERATION_CONFIG_FILE, read_spec
from specserve.models.tokenizer_files import TOKENIZER_FILE, load_tokenizer, read_chat_template

CHECKSUMS = "SHA256SUMS"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_COPIED = (TOKENIZER_FILE, _TOKENIZER_CONFIG, "special_tokens_map.json", "chat_template.jinja",
           GENERATION_CONFIG_FILE)  # fmt: skip
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "use_sliding_window": False,
    "sliding_window": None,
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}


def hf_config(shape: DecoderConfig, end_id: int, pad_id: int) -> dict[str, object]:
    """config.json of a Qwen3 or Llama model of this shape."""
    rope = rope_fields(shape.rope)
    return {
        **(_QWEN3 if shape.qk_norm else _LLAMA),
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
        # Twice: transformers 5 reads rope_parameters, older readers the two behind it.
        "rope_parameters": rope,
        "rope_theta": shape.rope.theta,
        "rope_scaling": None if shape.rope.kind == "default" else rope,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * shape.num_hidden_layers,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": shape.tie_word_embeddings,
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


def copy_tokenizer(model: Path, out: Path) -> None:
    """A model's tokenizer, and where its texts end.

    Of a folder what is there of them, of a GGUF file what its metadata says.
    """
    if model.is_dir():
        for name in _COPIED:
            if (model / name).is_file():
                shutil.copyfile(model / name, out / name)
        return
    load_tokenizer(model).save(str(out / TOKENIZER_FILE))
    template, special = read_chat_template(model)
    described: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    described |= {name: token for name, token in special.items() if token}
    if template is not None:
        described["chat_template"] = template
    _write_json(out / _TOKENIZER_CONFIG, described)
    end_ids = list(read_spec(model).eos_token_ids)
    _write_json(out / GENERATION_CONFIG_FILE, {"eos_token_id": end_ids})


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
