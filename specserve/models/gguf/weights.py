"""A GGUF file's tensors as `specserve.models.checkpoint` reads those of a safetensors file.

Under the names that transformers has for them; quantised ones are dequantised when they are read,
to float32, row by row. Llama's query and key rows come back into the order that half-split rotary
embedding wants: llama.cpp stores the two dimensions that turn together side by side.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch

from specserve.errors import Unsupported
from specserve.models.gguf.container import GgufFile, StoredTensor
from specserve.models.gguf.spec import EMBEDDING, LM_HEAD, ROPE_FACTORS, gguf_spec

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTISED = frozenset(
    kind.name for kind in gguf.quants._type_traits if kind.name not in _PLAIN
)  # which the package dequantises
_WHOLE_MODEL = {
    EMBEDDING: "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    LM_HEAD: "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights:
    """The tensors of an open file, with the methods of safetensors' `safe_open`."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        spec = gguf_spec(self._file)
        # Llama's alone: Qwen3's converter leaves rows in the order they had.
        permuted = spec.model_type == "llama"
        self._heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads} if permuted else {}
        self._slices = dict(self._named())

    def __enter__(self) -> "GgufWeights":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keys(self) -> list[str]:
        return list(self._slices)

    def get_slice(self, name: str) -> "GgufSlice":
        return self._slices[name]

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._slices[name][()]

    def _named(self) -> Iterator[tuple[str, "GgufSlice"]]:
        for tensor in self._file.tensors.values():
            if tensor.name == ROPE_FACTORS:
                continue  # which the configuration has read
            match = _LAYER.fullmatch(tensor.name)
            kind = match[2] if match else ""
            if match and kind in _OF_LAYER:
                name = f"layers.{int(match[1])}.{_OF_LAYER[kind]}.{match[3]}"
            else:  # unknown ones keep their name, for whoever refuses them
                name = _WHOLE_MODEL.get(tensor.name, tensor.name)
            yield name, GgufSlice(self._file, tensor, self._heads.get(kind, 0))


@dataclass(frozen=True)
class GgufSlice:
    """One tensor, of which parts can be read; with `num_heads`, rows are put back in order."""

    file: GgufFile
    tensor: StoredTensor
    num_heads: int

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        return self.tensor.kind

    def __getitem__(self, part: tuple[slice, ...]) -> torch.Tensor:
        """The tensor, or the part of it that `part` indexes, as float32 or as stored."""
        if len(self.tensor.shape) == 1 or self.num_heads or not part:
            whole = self._rows(slice(None))
            return whole[part].clone() if part else whole
        rows, *others = part
        return self._rows(rows)[(slice(None), *others)].contiguous()

    def _rows(self, rows: slice) -> torch.Tensor:
        stored = self.file.bytes_of(self.tensor)[rows]
        kind, width = self.tensor.kind, self.tensor.shape[-1]
        if kind in _PLAIN:
            numbers = torch.from_numpy(stored.copy()).view(_PLAIN[kind])
        else:
            known = gguf.GGMLQuantizationType[kind]
            numbers = torch.from_numpy(gguf.quants.dequantize(stored, known))
        numbers = numbers.reshape(-1, width)
        if len(self.tensor.shape) == 1:
            return numbers.flatten()
        return _half_split(numbers, self.num_heads) if self.num_heads else numbers


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * D, in] whose rows turn in pairs (0, 1), (2, 3), ... -> pairs (0, D/2), (1, ...)."""
    if weight.shape[0] % (2 * num_heads):
        raise Unsupported(f"{weight.shape[0]} rows of {num_heads} heads are no pairs")
    pairs = weight.view(num_heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
