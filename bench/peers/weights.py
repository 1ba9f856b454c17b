"""The same weights in the forms that peers read: 16-bit GGUF, and a Hugging Face folder.

Made from the GGUF file that specserve serves: dequantised to float32, rounded once to 16 bits. So
whoever computes with them reads as many bytes, and has the same model. What was made is kept.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from draft_node.training.export import copy_tokenizer
from specserve.errors import Unsupported
from specserve.models.checkpoint import SINGLE_FILE, Checkpoint
from specserve.models.config import ModelSpec, read_spec

BFLOAT16, FLOAT16 = "bfloat16", "float16"
_STORED = {
    BFLOAT16: gguf.GGMLQuantizationType.BF16,
    FLOAT16: gguf.GGMLQuantizationType.F16,
}
_FILE_TYPES = {
    BFLOAT16: gguf.LlamaFileType.MOSTLY_BF16,
    FLOAT16: gguf.LlamaFileType.MOSTLY_F16,
}
_PLAIN = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F64)
_WRITTEN_ANEW = ("GGUF.", "general.architecture", "general.file_type")
_WHOLE_NAMES = ("lm_head.weight",)  # every other one has transformers' prefix


class Weights:
    """Forms of one model file, below `cache`, each made when it is first asked for."""

    def __init__(self, model: Path, cache: Path) -> None:
        self.model = model
        self._cache = cache / f"{model.stem}-{_fingerprint(model)}"

    @property
    def is_gguf(self) -> bool:
        return self.model.is_file()

    def gguf_file(self, dtype: str | None = None) -> Path:
        """In 16 bits, or as it is. Raises Unsupported for a folder: there is none to copy from."""
        if not self.is_gguf:
            raise Unsupported("needs a GGUF file, and the target is a folder")
        if dtype is None:
            return self.model
        return self._made(f"{dtype}.gguf", lambda path: write_gguf(self.model, path, dtype))

    def folder(self) -> Path:
        """In bfloat16; a target that is a folder is used as it is."""
        if not self.is_gguf:
            return self.model
        return self._made(BFLOAT16, lambda path: write_folder(self.model, path))

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        """Whole or not at all: it is made beside its place and then moved there."""
        path = self._cache / name
        if not path.exists():
            self._cache.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"unfinished-{name}")
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            make(unfinished)
            unfinished.rename(path)
        return path


def _fingerprint(model: Path) -> str:
    """Of its place, size and time: another file of that name gets forms of its own."""
    status = model.stat()
    text = f"{model.resolve()} {status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_gguf(model: Path, out: Path, dtype: str) -> None:
    """A copy of a GGUF file whose matrices are in 16 bits; what was in float32 stays so.

    Rows keep the order that llama.cpp gave them, and every key of the metadata is copied.
    """
    reader = gguf.GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_file_type(_FILE_TYPES[dtype])
    for name, field in reader.fields.items():
        if not name.startswith(_WRITTEN_ANEW):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        kind = tensor.tensor_type
        if kind in _PLAIN:
            writer.add_tensor(tensor.name, np.array(tensor.data))
            continue
        numbers = gguf.quants.dequantize(tensor.data, kind)
        # The writer takes shapes of BF16 in bytes, which those of the array are.
        stored = gguf.quants.quantize(numbers, _STORED[dtype])
        writer.add_tensor(tensor.name, stored, raw_dtype=_STORED[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(model: Path, out: Path) -> None:
    """A Hugging Face folder in bfloat16, read from a GGUF file by our own reader."""
    out.mkdir(parents=True)
    with Checkpoint(model) as checkpoint:
        tensors = {
            name if name in _WHOLE_NAMES else f"model.{name}": _rounded(checkpoint.read(name))
            for name in checkpoint.names()
        }
    save_file(tensors, out / SINGLE_FILE, metadata={"format": "pt"})
    write_tokenizer(model, out)


def write_tokenizer(model: Path, out: Path) -> None:
    """All of a Hugging Face folder but its weights, of a GGUF file, into the folder `out`."""
    _write_json(out / "config.json", folder_config(read_spec(model)))
    copy_tokenizer(model, out)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).contiguous()


def folder_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a model. Raises Unsupported where it cannot say what the GGUF file says."""
    if spec.rope.kind != "default":
        raise Unsupported(f"needs plain rotary frequencies, and the target's are {spec.rope.kind}")
    return {
        "architectures": [spec.architecture],
        "model_type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_real_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope.theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "eos_token_id": list(spec.eos_token_ids),
        "dtype": BFLOAT16,
        "torch_dtype": BFLOAT16,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
