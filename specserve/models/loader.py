"""From a folder to a `Transformer`: reads this rank's shard of every weight, no more.

No code that comes with a checkpoint is ever executed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from specserve.errors import Unsupported
from specserve.models.ballast import with_ballast
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import ModelSpec, read_spec
from specserve.models.dealing import Shares, check_ranks, deal, deal_heads
from specserve.models.layers import DecoderLayer, RMSNorm
from specserve.models.parallel import TensorParallel
from specserve.models.parts import LayerParts, Linear
from specserve.models.projection import GatheredProjection, Projection, ReducedProjection
from specserve.models.rope import RotaryTable
from specserve.models.transformer import Transformer

if TYPE_CHECKING:  # which knows models
    from specserve.backends.base import Backend

_MOST = torch.finfo(torch.float16).max
_HALVES = ("BF16", "F16")  # as safetensors calls them


class Weights(Protocol):
    """Where tensors come from."""

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        """The tensor `name`, or the `part` of it that is wanted."""
        ...


def load_model(
    folder: str | Path,
    *,
    backend: "Backend",
    dtype: torch.dtype,
    parallel: TensorParallel,
    ballast: int = 0,
    num_positions: int | None = None,
    deterministic: bool,
) -> Transformer:
    """This rank's share of the model in `folder`, ready to run.

    `dtype`: what it is served in. `ballast` is the number of parameters to pad the model to, 0 for
    none; `num_positions` is how many positions of a row will be used, None for all that the model
    has. With `deterministic`, a token's result has the same bits in every batch and for every
    number of ranks. Raises `Unsupported` for a checkpoint that is malformed or not implemented,
    `InvalidField` for ballast.
    """
    folder = Path(folder)
    parts = backend.target_parts(
        dtype, deterministic=deterministic, is_stored_in_16_bits=is_stored_in_16_bits(folder)
    )
    return load_with(parts, folder, parallel, ballast=ballast, num_positions=num_positions)


def is_stored_in_16_bits(folder: Path) -> bool:
    """Whether all of the model's matrices are."""
    try:
        with Checkpoint(folder) as checkpoint:
            return checkpoint.first_matrix_beyond(_HALVES) is None
    except Unsupported:
        return False  # whoever loads it will say what is wrong


def load_with(
    parts: LayerParts,
    folder: Path,
    parallel: TensorParallel,
    *,
    ballast: int = 0,
    num_positions: int | None = None,
) -> Transformer:
    """The same as `load_model` of parts of the caller's choice, on their device."""
    spec = read_spec(folder)
    check_ranks(spec, parallel.size)
    padded, own_len = with_ballast(spec, ballast), spec.max_position_embeddings
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        optional = ("lm_head.weight",) if spec.tie_word_embeddings else ()
        checkpoint.check(expected_tensors(spec), optional)
        if spec.tie_word_embeddings:
            refuse_another_head(checkpoint)
        return assemble(
            padded,
            checkpoint,
            parallel,
            parts,
            num_positions=min(num_positions or own_len, own_len),
        )


def assemble(
    spec: ModelSpec,
    weights: Weights,
    parallel: TensorParallel,
    parts: LayerParts,
    *,
    num_positions: int,
) -> Transformer:
    """This rank's share of the model that `spec` describes, of `weights` as checkpoints name them.

    They are taken to be what `expected_tensors` says, wherever they come from.
    """
    with torch.inference_mode():
        return _Builder(spec, weights, parallel, parts).build(num_positions)


def refuse_another_head(checkpoint: Checkpoint) -> None:
    """A tied model may store its head as well, but not a different one: either may be meant."""
    if "lm_head.weight" not in checkpoint:
        return
    head, embedding = (checkpoint.read(f"{name}.weight") for name in ("lm_head", "embed_tokens"))
    if not torch.equal(head, embedding.to(head.dtype)):
        raise Unsupported(
            f"{checkpoint.folder}: tensor lm_head.weight is not embed_tokens.weight, as "
            "tie_word_embeddings in config.json says; set that to false, or remove the tensor"
        )


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint, ballast aside."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
        "norm.weight": (spec.hidden_size,),
        "lm_head.weight": (spec.vocab_size, spec.hidden_size),
    }
    for index in range(spec.num_real_layers):
        for name, shape in layer_tensors(spec, spec.intermediate_size).items():
            shapes[f"layers.{index}.{name}"] = shape
    return shapes


def layer_tensors(spec: ModelSpec, width: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of one layer with intermediate size `width`."""
    hidden, head_dim = spec.hidden_size, spec.head_dim
    q_size, kv_size = spec.num_heads * head_dim, spec.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }
    if spec.qk_norm:
        shapes["self_attn.q_norm.weight"] = (head_dim,)
        shapes["self_attn.k_norm.weight"] = (head_dim,)
    return shapes


@dataclass(frozen=True)
class _StoredLayer:
    checkpoint: Weights
    index: int

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        return self.checkpoint.read(f"layers.{self.index}.{name}", part)


@dataclass(frozen=True)
class _BallastLayer:
    """Random weights, but zero where they would reach the residual stream."""

    shapes: dict[str, tuple[int, ...]]
    generator: torch.Generator

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        shape = self.shapes[name]
        if len(shape) == 1:
            return torch.ones(shape)
        sizes = [len(range(*cut.indices(size))) for cut, size in zip(part, shape, strict=True)]
        if name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            return torch.zeros(sizes)
        bound = (3 / shape[1]) ** 0.5
        numbers = torch.empty(sizes).uniform_(-bound, bound, generator=self.generator)
        return numbers.bfloat16().float()  # as much to read as weights of a checkpoint


class _Builder:
    """Puts one rank's layers together."""

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: Weights,
        parallel: TensorParallel,
        parts: LayerParts,
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._dtype, self._rounded_to = parts.dtype, parts.rounded_to
        self._device = parts.device
        self._parallel = parallel
        self._parts = parts

    def build(self, num_positions: int) -> Transformer:
        spec = self._spec
        head = "embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
        model = Transformer(
            spec,
            embedding=self._place(self._checkpoint.read("embed_tokens.weight")),
            layers=[self._layer(index) for index in range(spec.num_layers)],
            final_norm=self._norm(self._checkpoint, "norm.weight"),
            lm_head=self._linear(self._checkpoint, [head], self._columns(spec.vocab_size)),
            rotary=RotaryTable(
                spec.rope,
                head_dim=spec.head_dim,
                num_positions=num_positions,
                dtype=self._dtype,
                device=self._device,
            ),
            parallel=self._parallel,
        )
        model.half_weights = self._parts.any_halved
        model.dtype = self._rounded_to
        return model

    def _layer(self, index: int) -> DecoderLayer:
        spec, width = self._spec, self._spec.layer_width(index)
        weights = self._layer_weights(index, width)
        heads = self._parallel.share_heads(spec.num_heads, spec.num_kv_heads)
        qkv_names = [f"self_attn.{kind}_proj.weight" for kind in "qkv"]
        gate_up_names = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
        return DecoderLayer(
            index=index,
            num_heads=len(heads.queries),
            num_kv_heads=len(heads.kv),
            head_dim=spec.head_dim,
            input_norm=self._norm(weights, "input_layernorm.weight"),
            qkv=self._linear(weights, qkv_names, heads.columns(spec.head_dim)),
            qk_norm=self._qk_norm(weights) if spec.qk_norm else None,
            o_proj=self._project(weights, "self_attn.o_proj.weight", self._queries()),
            mlp_norm=self._norm(weights, "post_attention_layernorm.weight"),
            gate_up=self._linear(weights, gate_up_names, self._columns(width, width)),
            gate=self._parts.gate(len(self._parallel.share(width))),
            down_proj=self._project(
                weights, "mlp.down_proj.weight", deal(width, self._parallel.size)
            ),
        )

    def _columns(self, *sizes: int) -> Shares:
        """This rank's columns of several weights."""
        return tuple(self._parallel.share(size) for size in sizes)

    def _queries(self) -> Shares:
        """Every rank's columns of all queries."""
        spec = self._spec
        dealt = deal_heads(spec.num_heads, spec.num_kv_heads, self._parallel.size)
        return tuple(heads.queries.times(spec.head_dim) for heads in dealt)

    def _layer_weights(self, index: int, width: int) -> Weights:
        if index < self._spec.num_real_layers:
            return _StoredLayer(self._checkpoint, index)
        generator = torch.Generator().manual_seed(index)
        return _BallastLayer(layer_tensors(self._spec, width), generator)

    def _norm(self, weights: Weights, name: str) -> RMSNorm:
        return RMSNorm(self._place(weights.read(name)), self._spec.rms_norm_eps)

    def _qk_norm(self, weights: Weights) -> RMSNorm:
        """One norm over this rank's query and key heads: weight [heads + kv_heads, head_dim]."""
        heads = self._parallel.share_heads(self._spec.num_heads, self._spec.num_kv_heads)
        q = weights.read("self_attn.q_norm.weight").expand(len(heads.queries), -1)
        k = weights.read("self_attn.k_norm.weight").expand(len(heads.kv), -1)
        return RMSNorm(self._place(torch.cat([q, k])), self._spec.rms_norm_eps)

    def _linear(self, weights: Weights, names: list[str], shares: Shares) -> Linear:
        """This rank's rows of several weights, as one product."""
        parts = [
            self._place(weights.read(name, (share.entries, slice(None))))
            for name, share in zip(names, shares, strict=True)
        ]
        return self._parts.linear(parts, shares)

    def _project(self, weights: Weights, name: str, inputs: Shares) -> Projection:
        """Closed by all ranks together; `inputs`: every rank's, as what comes before gives them."""
        parallel, hidden_size = self._parallel, self._spec.hidden_size
        if self._parts.deterministic:
            linear = self._linear(weights, [name], self._columns(hidden_size))
            return GatheredProjection(linear, parallel, inputs, deal(hidden_size, parallel.size))
        part = (slice(None), inputs[parallel.rank].entries)
        return ReducedProjection(
            self._parts.linear([self._place(weights.read(name, part))]), parallel
        )

    def _place(self, weight: torch.Tensor) -> torch.Tensor:
        rounded = weight.to(self._device, self._rounded_to)
        if self._rounded_to == torch.float16 and bool(rounded.isinf().any()):
            raise Unsupported(
                f"dtype: a weight is beyond float16's {_MOST:.0f}; serve it in bfloat16"
            )
        return rounded.to(self._dtype)
