"""Whether compiled forwards can be had here: a very small model's are compared with torch's."""

import functools

import numpy as np
import torch

from specserve.backends.cpu import compiled, layer_kernels
from specserve.backends.cpu.forward import CompiledForward
from specserve.backends.cpu.parts import CpuParts
from specserve.backends.torch.forward import TorchForward
from specserve.models.attention import AttentionBatch
from specserve.models.config import ModelSpec, RopeSpec
from specserve.models.layers import DecoderLayer, RMSNorm
from specserve.models.parallel import TensorParallel
from specserve.models.rope import RotaryTable
from specserve.models.transformer import Transformer

# By what keys and values are kept in. One that lies half-way between two numbers of bfloat16 may be
# rounded either way: errors of 1e-6 in embeddings moved states by .0035 at most. Without rounding
# they are .014 off.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.006}
_NUM_BLOCKS, _BLOCK_SIZE = 12, 16

SMALL = ModelSpec(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=32,
    hidden_size=40,
    intermediate_size=24,
    num_real_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope=RopeSpec(theta=100.0),
    qk_norm=True,
    tie_word_embeddings=True,
    eos_token_ids=(),
    dtype="float32",
)


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles everything, unless that was done before."""
    return compiled.works("forwards are made", layer_kernels.run_parts, _check)


@torch.inference_mode()
def _check() -> None:
    """Raises ArithmeticError if they are wrong."""
    model = small_model()
    for kv_dtype, tolerance in _TOLERANCES.items():
        ours = CompiledForward(
            model, num_blocks=_NUM_BLOCKS, block_size=_BLOCK_SIZE, kv_dtype=kv_dtype
        )
        others = TorchForward(
            model,
            num_blocks=_NUM_BLOCKS,
            block_size=_BLOCK_SIZE,
            deterministic=False,
            kv_dtype=kv_dtype,
        )
        error = _difference(model, ours, others)
        if not error <= tolerance:
            kept = f"keys and values in {kv_dtype}"
            raise ArithmeticError(f"a small model's states, with {kept}, differ by {error}")


def _difference(model: Transformer, ours: CompiledForward, others: TorchForward) -> float:
    """The largest of two forwards, in which rows enter and go on."""
    errors: list[float] = []
    tables = [np.arange(5, 9), np.arange(1, 5)]
    for counts, ends in (([40, 3], [40, 3]), ([1, 17], [41, 20])):
        batch = AttentionBatch(np.array(counts), np.array(ends), tables)
        spans = zip(counts, ends, strict=True)
        positions = torch.cat([torch.arange(end - count, end) for count, end in spans])
        found = []
        for forward in (ours, others):
            forward.plan(batch)
            hidden, tapped = forward.run(positions % model.config.vocab_size, (-1, 0))
            found.append(torch.stack([hidden, *tapped]))
        errors.append((found[0] - found[1]).abs().max().item())
    return float(torch.tensor(errors).max())  # NaN if one of them is


def small_model() -> Transformer:
    spec = SMALL
    generator = torch.Generator().manual_seed(0)
    parallel = TensorParallel()
    cpu = torch.device("cpu")
    parts = CpuParts(deterministic=False)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    def norm(*shape: int) -> RMSNorm:
        return RMSNorm(1 + 0.1 * torch.randn(shape, generator=generator), spec.rms_norm_eps)

    def layer(index: int) -> DecoderLayer:
        hidden, width, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        return DecoderLayer(
            index=index,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            input_norm=norm(hidden),
            qkv=parts.linear([weight((heads + 2 * kv_heads) * dim, hidden)]),
            qk_norm=norm(heads + kv_heads, dim),
            o_proj=parts.linear([weight(hidden, heads * dim)]),
            mlp_norm=norm(hidden),
            gate_up=parts.linear([weight(2 * width, hidden)]),
            gate=parts.gate(width),
            down_proj=parts.linear([weight(hidden, width)]),
        )

    return Transformer(
        spec,
        embedding=weight(spec.vocab_size, spec.hidden_size),
        layers=[layer(index) for index in range(spec.num_layers)],
        final_norm=norm(spec.hidden_size),
        lm_head=parts.linear([weight(spec.vocab_size, spec.hidden_size)]),
        rotary=RotaryTable(
            spec.rope,
            head_dim=spec.head_dim,
            num_positions=spec.max_position_embeddings,
            dtype=torch.float32,
            device=cpu,
        ),
        parallel=parallel,
    )
