"""Small GGUF files for tests, written from folders in the Hugging Face layout.

Written with the `gguf` package's writer, as llama.cpp's converter lays them out.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Kind = gguf.GGMLQuantizationType


def stored_name(name: str) -> str:
    """What llama.cpp calls a tensor of transformers'."""
    name = name.removeprefix("model.")
    whole = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    if not name.startswith("layers."):
        return f"{whole[name.removesuffix('.weight')]}.weight"
    _, index, rest = name.split(".", 2)
    return f"blk.{index}.{NAMES[rest.removesuffix('.weight')]}.weight"


def in_pairs(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Llama's query or key rows as the converter orders them: what turns together is adjacent."""
    halves = weight.view(num_heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: Kind = Kind.F32,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """The model in `folder`, its matrices stored as `kind`; `metadata` overrides, None leaves out.

    `tensors` are stored besides, as float32.
    """
    config = json.loads((folder / "config.json").read_text())
    is_llama = config["architectures"] == ["LlamaForCausalLM"]
    keys = _keys(config, "llama" if is_llama else "qwen3") | dict(metadata or {})
    architecture = keys.pop("general.architecture")
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if value is not None:
            _add(writer, key, value)
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        which = name.removesuffix("_proj.weight")[-1]
        if is_llama and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = in_pairs(tensor, heads[which])
        _add_tensor(writer, stored_name(name), tensor.float().numpy(), kind)
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _keys(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    own = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    if "head_dim" in config:
        own |= {
            "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"],
        }
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    own["rope.freq_base"] = float(theta)
    keys = {f"{architecture}.{key}": value for key, value in own.items()}
    return {"general.architecture": architecture, "tokenizer.ggml.eos_token_id": 1} | keys


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, numbers: np.ndarray, kind: Kind) -> None:
    if numbers.ndim == 1 or kind is Kind.F32:
        writer.add_tensor(name, numbers.astype(np.float32))
    elif kind is Kind.F16:
        writer.add_tensor(name, numbers.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
