# pyright: strict
"""What a checkpoint folder's `config.json` says about its architecture.

Decides from the content alone, never from the folder's name, and refuses what the forward pass
does not implement, naming the field. Knows no tensors; never looks at `auto_map` or other code.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from specserve.errors import Unsupported
from specserve.models.known_tokens import tokenizer_size
from specserve.models.model_files import read_regular

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
DTYPES = ("float32", "bfloat16", "float16")
ARCHITECTURES = {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}

DEFAULT_ROPE_THETA = 10_000.0  # what both architectures mean when the field is absent

T = TypeVar("T")
# Ranges are far beyond what anybody publishes. What is outside is a mistake or meant to harm: sizes
# that nothing could hold, frequencies and norms that make numbers which are none.
MOST = 2**24  # of any size or count
MOST_POSITIONS = 2**40  # those that nobody uses cost nothing
MOST_LAYERS = 4096  # the deepest published models have some two hundred
EPSILONS, THETAS, FACTORS = (1e-15, 0.1), (1.0, 1e15), (1e-3, 1e4)
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Positions = Annotated[int, msgspec.Meta(ge=1, le=MOST_POSITIONS)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
Epsilon = Annotated[float, msgspec.Meta(ge=EPSILONS[0], le=EPSILONS[1])]
Theta = Annotated[float, msgspec.Meta(ge=THETAS[0], le=THETAS[1])]
PositiveOrZero = Annotated[float, msgspec.Meta(ge=0, le=FACTORS[1])]
Factor = Annotated[float, msgspec.Meta(ge=FACTORS[0], le=FACTORS[1])]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary frequencies. `kind` is default, linear, llama3, yarn, proportional or factors.

    `factor` belongs to linear, llama3 and yarn, the two after it to llama3, beta_* and `truncate`
    to yarn, the fraction of turning dimensions to proportional, and to factors what each pair's
    frequency is divided by.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    rotary_fraction: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # on cos and sin, so on queries and on keys
    pair_factors: tuple[float, ...] = ()  # head_dim / 2 of them


@dataclass(frozen=True)
class ModelSpec:
    """Everything the forward pass and the loader need to know. Sizes are those of all ranks."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_real_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    qk_norm: bool
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the weights on disk, one of DTYPES; float16 for quantised ones
    quantised: tuple[str, ...] = ()  # GGUF's types of quantised matrices, the most used first
    # Token ids from here on pad the vocabulary and stand for no text; None: none do.
    tokenizer_size: int | None = None
    ballast_widths: tuple[int, ...] = ()  # intermediate sizes of the layers appended as ballast

    @property
    def num_known_tokens(self) -> int:
        """Token ids from 0 that may be read and written; the padding of the vocabulary is not."""
        return min(self.vocab_size, self.tokenizer_size or self.vocab_size)

    @property
    def num_layers(self) -> int:
        """Layers that run and hold KV, ballast included."""
        return self.num_real_layers + len(self.ballast_widths)

    def layer_width(self, index: int) -> int:
        """Intermediate size of layer `index`."""
        extra = index - self.num_real_layers
        return self.intermediate_size if extra < 0 else self.ballast_widths[extra]

    def layer_params(self, width: int) -> int:
        """Parameters of one layer with intermediate size `width`."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return self.hidden_size * (heads + 3 * width) + norms

    @property
    def ballast_params(self) -> int:
        return sum(self.layer_params(width) for width in self.ballast_widths)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model; tied embeddings count once, ballast counts."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        layers = self.num_real_layers * self.layer_params(self.intermediate_size)
        return embeddings + layers + self.hidden_size + self.ballast_params


class _RopeFile(msgspec.Struct):
    """`rope_scaling` (transformers v4) or `rope_parameters` (v5)."""

    rope_type: str | None = None
    type: str | None = None  # the older spelling of rope_type
    rope_theta: Theta | None = None
    factor: Factor | None = None
    low_freq_factor: PositiveFloat | None = None
    high_freq_factor: PositiveFloat | None = None
    original_max_position_embeddings: Positions | None = None
    partial_rotary_factor: float | None = None
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    truncate: bool = True
    attention_factor: Factor | None = None
    mscale: PositiveOrZero | None = None
    mscale_all_dim: PositiveOrZero | None = None


class _ConfigFile(msgspec.Struct):
    """The fields of config.json that matter here; others are ignored."""

    architectures: list[str]
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Layers
    num_attention_heads: Positive
    max_position_embeddings: Positions
    rms_norm_eps: Epsilon
    model_type: str = ""
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_theta: Theta | None = None
    rope_scaling: dict[str, Any] | None = None  # a `_RopeFile`, as the next
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: dict[str, Any] | None = None


class _GenerationFile(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def read_spec(model: Path) -> ModelSpec:
    """The architecture of a checkpoint folder or of a GGUF file.

    Raises `Unsupported` naming the field at fault.
    """
    if model.is_file():
        # Imported here: what reads GGUF builds on this module, and most models are folders.
        from specserve.models.gguf.spec import read_gguf_spec

        return read_gguf_spec(model)
    path = model / CONFIG_FILE
    spec = decoder_spec(read_json(path, dict[str, Any], field="model.target"), path)
    size = tokenizer_size(model)
    if size is None:
        return spec
    # A model may end with a token that its tokenizer has no text for.
    return replace(spec, tokenizer_size=max(size, *(1 + end for end in spec.eos_token_ids), 0))


def decoder_spec(content: object, path: Path) -> ModelSpec:
    """The architecture that `content` describes, which came from `path`; as `read_spec`."""
    file = convert(path, content, _ConfigFile)
    architecture = file.architectures[0] if file.architectures else ""
    if architecture not in ARCHITECTURES:
        raise Unsupported(
            f"{path}: architectures: {architecture!r} is not one of {', '.join(ARCHITECTURES)}"
        )
    _refuse_unimplemented(path, file)
    num_kv_heads = file.num_key_value_heads or file.num_attention_heads
    if file.num_attention_heads % num_kv_heads:
        raise Unsupported(f"{path}: num_key_value_heads does not divide num_attention_heads")
    rope = _rope(path, file)
    return ModelSpec(
        architecture=architecture,
        model_type=ARCHITECTURES[architecture],
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_real_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(path, file),
        max_position_embeddings=_num_positions(path, file, rope),
        rms_norm_eps=file.rms_norm_eps,
        rope=rope,
        qk_norm=architecture == "Qwen3ForCausalLM",
        tie_word_embeddings=file.tie_word_embeddings,
        eos_token_ids=_eos_token_ids(path.parent, file),
        dtype=_dtype(path, file),
    )


def read_json(path: Path, kind: type[T], *, field: str | None = None) -> T:
    """The content of a JSON file as `kind`. Raises `Unsupported` naming the file and field.

    `field` is the setting that names the file's folder, for when it does not hold the file.
    """
    try:
        content: object = json.loads(read_regular(path))
    except FileNotFoundError:
        problem = f"{path.parent} is no model folder, {path.name} is missing"
        raise Unsupported(problem if field is None else f"{field}: {problem}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Unsupported(f"{path}: not readable as JSON: {error}") from error
    return convert(path, content, kind)


def convert(path: Path, content: object, kind: type[T]) -> T:
    """`content`, which came from `path`, as `kind`; raises as `read_json`."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise Unsupported(f"{path}: {error}") from error


def _refuse_unimplemented(path: Path, file: _ConfigFile) -> None:
    problems = {
        "attention_bias": file.attention_bias and "true is not supported",
        "mlp_bias": file.mlp_bias and "true is not supported",
        "hidden_act": file.hidden_act != "silu" and f"{file.hidden_act!r} is not supported",
        "use_sliding_window": file.use_sliding_window and "true is not supported",
        "layer_types": any(kind != "full_attention" for kind in file.layer_types or ())
        and "only full_attention is supported",
        "quantization_config": bool(file.quantization_config)
        and "quantised weights are read from GGUF files alone; take such a file of this model, or "
        "its weights in 16 bits",
        "partial_rotary_factor": file.partial_rotary_factor not in (None, 1.0)
        and "only 1.0 is supported",
    }
    for field, problem in problems.items():
        if problem:
            raise Unsupported(f"{path}: {field}: {problem}")


def _head_dim(path: Path, file: _ConfigFile) -> int:
    if file.head_dim is None and file.hidden_size % file.num_attention_heads:
        raise Unsupported(f"{path}: num_attention_heads does not divide hidden_size")
    head_dim = file.head_dim or file.hidden_size // file.num_attention_heads
    if head_dim % 2:
        raise Unsupported(f"{path}: head_dim: {head_dim} is odd, rotary embedding needs pairs")
    return head_dim


def _rope(path: Path, file: _ConfigFile) -> RopeSpec:
    """transformers v5 keeps all in `rope_parameters`, v4 splits `rope_theta` and `rope_scaling`.

    Where a file has both, transformers takes `rope_scaling`, which is what somebody added.
    """
    is_split = bool(file.rope_scaling) or not file.rope_parameters
    field = "rope_scaling" if is_split else "rope_parameters"
    try:
        rope = msgspec.convert(getattr(file, field) or {}, _RopeFile)
    except msgspec.ValidationError as error:
        raise Unsupported(f"{path}: {field}: {error}") from error
    kind = rope.rope_type or rope.type or "default"
    theta = rope.rope_theta or file.rope_theta or DEFAULT_ROPE_THETA
    if rope.partial_rotary_factor not in (None, 1.0):
        raise Unsupported(f"{path}: {field}.partial_rotary_factor: only 1.0 is supported")
    if kind == "default":
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, kind, _needed(path, f"{field}.factor", rope.factor))
    if kind == "yarn":
        return _yarn(path, field, rope, theta, file.max_position_embeddings)
    if kind != "llama3":
        raise Unsupported(
            f"{path}: {field}.rope_type: {kind!r} is not one of default, linear, llama3, yarn"
        )
    low = _needed(path, f"{field}.low_freq_factor", rope.low_freq_factor)
    high = _needed(path, f"{field}.high_freq_factor", rope.high_freq_factor)
    if high <= low:
        raise Unsupported(f"{path}: {field}.high_freq_factor must exceed low_freq_factor")
    original = rope.original_max_position_embeddings
    return RopeSpec(
        theta,
        kind,
        _needed(path, f"{field}.factor", rope.factor),
        low,
        high,
        _needed(path, f"{field}.original_max_position_embeddings", original),
    )


def _num_positions(path: Path, file: _ConfigFile, rope: RopeSpec) -> int:
    """YaRN stretches a context to what its two numbers make of it, whatever stands beside them."""
    stretched = int(rope.factor * rope.original_max_position_embeddings)
    if stretched > MOST_POSITIONS and rope.kind == "yarn":
        problem = f"makes {stretched} positions; the limit is {MOST_POSITIONS}"
        raise Unsupported(f"{path}: rope factor: {problem}")
    return max(file.max_position_embeddings, stretched if rope.kind == "yarn" else 0)


def _yarn(path: Path, field: str, rope: _RopeFile, theta: float, max_positions: int) -> RopeSpec:
    """With the attention factor that the file asks for or, by its mscales, implies."""
    factor = _needed(path, f"{field}.factor", rope.factor)
    fast, slow = rope.beta_fast or 32.0, rope.beta_slow or 1.0
    if fast <= slow:
        raise Unsupported(f"{path}: {field}.beta_fast must exceed beta_slow")

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    attention_factor = rope.attention_factor or scale(1.0)
    if rope.attention_factor is None and rope.mscale and rope.mscale_all_dim:
        attention_factor = scale(rope.mscale) / scale(rope.mscale_all_dim)
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_max_position_embeddings=rope.original_max_position_embeddings or max_positions,
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.truncate,
        attention_factor=attention_factor,
    )


def _needed(path: Path, field: str, value: T | None) -> T:
    if value is None:
        raise Unsupported(f"{path}: {field} is missing")
    return value


def _dtype(path: Path, file: _ConfigFile) -> str:
    dtype = file.dtype or file.torch_dtype or "float32"
    if dtype not in DTYPES:
        raise Unsupported(f"{path}: dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
    return dtype


def _eos_token_ids(folder: Path, file: _ConfigFile) -> tuple[int, ...]:
    """End-of-sequence ids; generation_config.json, where there is one, has the last word."""
    eos = file.eos_token_id
    if (folder / GENERATION_CONFIG_FILE).is_file():
        generation = read_json(folder / GENERATION_CONFIG_FILE, _GenerationFile)
        eos = eos if generation.eos_token_id is None else generation.eos_token_id
    ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    for token_id in ids:
        if not 0 <= token_id < file.vocab_size:
            raise Unsupported(f"{folder}: eos_token_id {token_id} is outside the vocabulary")
    return ids
