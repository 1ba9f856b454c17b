# pyright: strict
"""What a GGUF file's metadata says about its architecture: the counterpart of config.json.

Knows no tensors but their names, shapes and types. Refuses, naming the key, what the forward pass
does not implement.
"""

import math
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from specserve.errors import Unsupported
from specserve.models.config import (
    DEFAULT_ROPE_THETA,
    EPSILONS,
    FACTORS,
    MOST,
    MOST_LAYERS,
    MOST_POSITIONS,
    THETAS,
    ModelSpec,
    RopeSpec,
)
from specserve.models.gguf.container import GgufFile, Numbers, Strings

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EMBEDDING, LM_HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # all others are quantised

# Keys under the architecture's name that change the forward pass, and what they are if they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "attention.causal": (True,),
}
# Tokens that end an answer by their names, as llama.cpp takes them: files seldom list them all.
_END_NAMES = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
    "<|end_of_sentence|>", "</s>",
})  # fmt: skip
TOKENS, TOKEN_TYPE = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_BETAS = (1e-6, 1e6)  # of YaRN
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # types of tokens

_T = TypeVar("_T", int, float, str, bool)


def read_gguf_spec(path: Path) -> ModelSpec:
    """The architecture of the model in `path`. Raises `Unsupported` naming the key at fault."""
    with GgufFile(path) as file:
        return gguf_spec(file)


def gguf_spec(file: GgufFile) -> ModelSpec:
    """The same of an open file."""
    keys = Keys(file)
    architecture = keys.get("general.architecture", str)
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        keys.fail(f"general.architecture: {architecture!r} is not one of {known}")
    _refuse_unimplemented(keys, architecture)
    vocab_size, hidden_size = _embedding_shape(file, keys)
    num_heads = keys.own("attention.head_count", int)
    num_kv_heads = keys.own("attention.head_count_kv", int, num_heads)
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        keys.fail(f"{architecture}.attention.head_count_kv: {num_kv_heads} of {num_heads} heads")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    rope, num_positions = _rope(file, keys, head_dim)
    end_token_ids = _end_token_ids(keys, vocab_size)
    return ModelSpec(
        architecture=ARCHITECTURES[architecture],
        model_type=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.own("feed_forward_length", int, least=1),
        num_real_layers=keys.own("block_count", int, least=1, most=MOST_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=num_positions,
        rms_norm_eps=keys.own("attention.layer_norm_rms_epsilon", float, within=EPSILONS),
        rope=rope,
        qk_norm=architecture == "qwen3",
        tie_word_embeddings=LM_HEAD not in file.tensors,
        eos_token_ids=end_token_ids,
        dtype=_dtype(file),
        quantised=_quantised(file),
        tokenizer_size=_tokenizer_size(keys, end_token_ids),
    )


class Keys:
    """Metadata by key, typed, with errors that name the file and the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = str(file.metadata.get("general.architecture", ""))

    def fail(self, problem: str) -> NoReturn:
        raise Unsupported(f"{self.file.path}: {problem}")

    def own(
        self,
        key: str,
        kind: type[_T],
        default: _T | None = None,
        *,
        least: int = 0,
        most: int = MOST,
        within: tuple[float, float] | None = None,
    ) -> _T:
        """A key below the architecture's name; of a list a layer, what all layers agree on.

        Whole numbers are held against `least` and `most`, others against `within`.
        """
        name = f"{self.architecture}.{key}"
        value = self.get(name, kind, default)
        if isinstance(value, int) and value < least:
            self.fail(f"{name}: {value} is less than {least}")
        if isinstance(value, int) and value > most:
            self.fail(f"{name}: {value}; the limit is {most}")
        if within is not None and isinstance(value, float):
            lowest, highest = within
            if not lowest <= value <= highest:
                self.fail(f"{name}: {value} is not within {lowest:g} to {highest:g}")
        return value

    def get(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self.plain(name)
        if value is None:
            if default is None:
                self.fail(f"metadata {name} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(f"{name}: {str(value)[:80]!r} is no {kind.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            self.fail(f"{name}: {value} is no finite number")
        return value

    def plain(self, name: str) -> object:
        """What stands there; of a short list what all of it agrees on."""
        value = self.file.metadata.get(name)
        if isinstance(value, Numbers) and 0 < len(value) <= MOST_LAYERS:
            numbers = value.read()
            return numbers[0] if len(set(numbers)) == 1 else numbers
        return value

    def strings(self, name: str) -> list[str]:
        value = self.file.metadata.get(name)
        if not isinstance(value, Strings):
            self.fail(f"metadata {name} is missing or no list of strings")
        return value.read()

    def integers(self, name: str) -> list[int]:
        """Empty where there are none."""
        value = self.file.metadata.get(name)
        if value is None:
            return []
        if not isinstance(value, Numbers):
            self.fail(f"{name} is no list of numbers")
        numbers = value.read()
        if not all(isinstance(number, int) for number in numbers):
            self.fail(f"{name} is no list of whole numbers")
        return numbers


def _refuse_unimplemented(keys: Keys, architecture: str) -> None:
    num_files = keys.get("split.count", int, 1)
    if num_files > 1:
        keys.fail(f"is one of {num_files} files; join them (llama-gguf-split --merge FIRST OUT)")
    for key, neutral in _NEUTRAL.items():
        name = f"{architecture}.{key}"
        value = keys.plain(name)
        if value is not None and value not in neutral:
            keys.fail(f"{name}: {str(value)[:80]} is not supported")


def _embedding_shape(file: GgufFile, keys: Keys) -> tuple[int, int]:
    """Vocabulary and hidden size, by the tensor: not every file has keys for both."""
    tensor = file.tensors.get(EMBEDDING)
    if tensor is None or len(tensor.shape) != 2:
        keys.fail(f"tensor {EMBEDDING} is missing or no matrix")
    vocab_size, hidden_size = tensor.shape
    for name, size in (("vocab_size", vocab_size), ("embedding_length", hidden_size)):
        said = keys.own(name, int, size)
        if said != size:
            keys.fail(f"{keys.architecture}.{name}: {said}, but {EMBEDDING} has {size}")
    return vocab_size, hidden_size


def _head_dim(keys: Keys, hidden_size: int, num_heads: int) -> int:
    usual = hidden_size // num_heads
    head_dim = keys.own("attention.key_length", int, usual, least=1)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = keys.own(key, int, head_dim)
        if other != head_dim:
            keys.fail(f"{keys.architecture}.{key}: {other}; the head size is {head_dim}")
    if head_dim % 2:
        keys.fail(f"{keys.architecture}.attention.key_length: {head_dim} is odd")
    return head_dim


def _rope(file: GgufFile, keys: Keys, head_dim: int) -> tuple[RopeSpec, int]:
    """Frequencies, and how many positions a row may have."""
    num_positions = keys.own("context_length", int, least=1, most=MOST_POSITIONS)
    theta = keys.own("rope.freq_base", float, DEFAULT_ROPE_THETA, within=THETAS)
    # By llama.cpp 0 means none.
    scales = (0.0, FACTORS[1])
    old_scale = keys.own(
        "rope.scale_linear", float, 1.0, within=scales
    )  # of files that predate the next key
    kind = keys.own("rope.scaling.type", str, "none" if old_scale == 1 else "linear")
    factor = keys.own("rope.scaling.factor", float, old_scale, within=scales)
    if ROPE_FACTORS in file.tensors:
        if kind not in ("none", "linear") or factor not in (0.0, 1.0):
            keys.fail(f"{keys.architecture}.rope.scaling.type: {kind} beside {ROPE_FACTORS}")
        return RopeSpec(theta, "factors", pair_factors=_pair_factors(file, keys, head_dim)), (
            num_positions
        )
    if kind not in ("none", "linear", "yarn"):
        name = f"{keys.architecture}.rope.scaling.type"
        keys.fail(f"{name}: {kind!r} is not one of none, linear, yarn")
    if kind == "none" or factor in (0.0, 1.0):
        return RopeSpec(theta), num_positions
    if factor < FACTORS[0]:
        name = f"{keys.architecture}.rope.scaling.factor"
        keys.fail(f"{name}: {factor} is neither 0 nor within {FACTORS[0]:g} to {FACTORS[1]:g}")
    if kind == "linear":
        return RopeSpec(theta, kind, factor), num_positions
    return _yarn(keys, theta, factor, num_positions), num_positions


def _yarn(keys: Keys, theta: float, factor: float, num_positions: int) -> RopeSpec:
    usual = max(1, int(num_positions / factor))
    own = keys.own("rope.scaling.attn_factor", float, 1.0, within=FACTORS)
    fast = keys.own("rope.scaling.yarn_beta_fast", float, 32.0, within=_BETAS)
    slow = keys.own("rope.scaling.yarn_beta_slow", float, 1.0, within=_BETAS)
    if fast <= slow:
        keys.fail(f"{keys.architecture}.rope.scaling.yarn_beta_fast: {fast} of {slow} at least")
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_max_position_embeddings=keys.own(
            "rope.scaling.original_context_length", int, usual, least=1, most=MOST_POSITIONS
        ),
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=own * (1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0),
    )


def _pair_factors(file: GgufFile, keys: Keys, head_dim: int) -> tuple[float, ...]:
    """What each pair's frequency is divided by: how Llama 3's scaling is stored in GGUF."""
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.kind != "F32" or tensor.shape != (head_dim // 2,):
        keys.fail(f"tensor {ROPE_FACTORS} is {tensor.kind} {list(tensor.shape)}, not one a pair")
    factors = file.bytes_of(tensor).view(np.float32).flatten()
    if not bool((np.isfinite(factors) & (factors > 0)).all()):
        keys.fail(f"tensor {ROPE_FACTORS} holds what is no positive number")
    return tuple(factors.tolist())


def _end_token_ids(keys: Keys, vocab_size: int) -> tuple[int, ...]:
    """Every token that ends an answer: those the file names, and control tokens by their names."""
    names = (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
    ids = [keys.get(name, int) for name in names if name in keys.file.metadata]
    kinds = keys.integers(TOKEN_TYPE)
    if TOKENS in keys.file.metadata:
        tokens = keys.strings(TOKENS)
        ids += [
            index
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind == CONTROL and token in _END_NAMES
        ]
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            keys.fail(f"end token {token_id} is outside the vocabulary of {vocab_size} tokens")
    return tuple(dict.fromkeys(ids))


def _tokenizer_size(keys: Keys, end_token_ids: tuple[int, ...]) -> int | None:
    """One more than the last token that stands for something; None without a vocabulary."""
    if TOKENS not in keys.file.metadata:
        return None
    num_tokens = len(keys.file.metadata[TOKENS])
    kinds = keys.integers(TOKEN_TYPE)
    used = [index for index, kind in enumerate(kinds) if kind != UNUSED]
    last = used[-1] if used else num_tokens - 1
    return 1 + max(last, *end_token_ids, 0)


def _dtype(file: GgufFile) -> str:
    """Of 16 bits where that is what the matrices are made of: quantised blocks have such scales."""
    kinds = _matrix_kinds(file)
    if any(kind not in _PLAIN for kind in kinds):
        return "float16"
    return _PLAIN[kinds[0]] if len(set(kinds)) == 1 else "float32"


def _quantised(file: GgufFile) -> tuple[str, ...]:
    kinds = _matrix_kinds(file)
    return tuple(sorted(set(kinds) - _PLAIN.keys(), key=kinds.count, reverse=True))


def _matrix_kinds(file: GgufFile) -> list[str]:
    return [tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1]
