"""Small random checkpoints in the Hugging Face folder layout, written without transformers."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from specserve.models.config import read_spec
from specserve.models.loader import expected_tensors, load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from tests.backends.chosen import BACKEND

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LLAMA = {
    **{key: value for key, value in QWEN3.items() if key not in ("head_dim", "rope_parameters")},
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


def write_config(folder: Path, config: dict, **changes) -> Path:
    """config.json with `changes` applied; a change to None removes the field."""
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(merged))
    return folder


def random_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What the config.json in `folder` asks for, with the usual names and one fixed seed."""
    spec = read_spec(folder)
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, shape in expected_tensors(spec).items():
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.2
        tensor = torch.randn(shape, generator=generator) * scale
        stored_name = name if name == "lm_head.weight" else f"model.{name}"
        tensors[stored_name] = tensor + 1 if len(shape) == 1 else tensor
    if spec.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def write_checkpoint(folder: Path, config: dict = QWEN3, **changes) -> Path:
    write_config(folder, config, **changes)
    save_file(random_tensors(folder), folder / "model.safetensors")
    return folder


def write_tokenizer(folder: Path, num_tokens: int) -> Path:
    """A tokenizer of so many tokens: what a vocabulary has besides only pads it."""
    vocabulary = {f"t{i}": i for i in range(num_tokens)}
    content = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def load(folder: Path, **options) -> Transformer:
    settings = {
        "dtype": torch.float32,
        "backend": BACKEND,
        "parallel": TensorParallel(),
        "deterministic": True,
    }
    return load_model(folder, **{**settings, **options})
