"""Gemma4's decoder layer as DSpark drafters use it: full attention, no experts.

Norms on both sides of each branch, values normalised without a weight, a scalar on the layer's
output; softmax scale 1 is the attention's business.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.drafters.weights import DraftWeights
from specserve.models.config import ModelSpec
from specserve.models.layers import AttentionRun, RMSNorm
from specserve.models.parts import Linear
from specserve.models.rope import rotate


def layer_tensors(spec: ModelSpec, *, keys_are_values: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of one layer."""
    hidden, width, head_dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_size, kv_size = spec.num_heads * head_dim, spec.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "pre_feedforward_layernorm.weight": (hidden,),
        "post_feedforward_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_norm.weight": (head_dim,),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
        "layer_scalar": (1,),
    }
    if not keys_are_values:
        shapes["self_attn.v_proj.weight"] = (kv_size, hidden)
    return shapes


@dataclass(frozen=True, slots=True)
class Gemma4Layer:
    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    input_norm: RMSNorm
    qkv: Linear  # queries, keys and, unless they are the keys, values
    qk_norm: RMSNorm  # weight [heads + kv_heads, head_dim]
    v_norm: RMSNorm  # weight all ones
    o_proj: Linear
    attention_norm: RMSNorm
    mlp_norm: RMSNorm
    gate_up: Linear
    down_proj: Linear
    output_norm: RMSNorm
    scalar: Tensor  # [1]

    def __call__(self, x: Tensor, rotary: tuple[Tensor, Tensor], attention: AttentionRun) -> Tensor:
        """x [N, H] -> [N, H], a new tensor; `rotary` comes from `RotaryTable.at`."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv(self.input_norm(x)).view(len(x), -1, self.head_dim)
        v = self.v_norm(qkv[:, -kv_heads:])
        qk = self.qk_norm(qkv[:, : heads + kv_heads])
        q, k = rotate(qk, *rotary).split((heads, kv_heads), 1)
        attended = self.o_proj(attention.run(self.index, q, k, v).flatten(1))
        x = self.attention_norm(attended).add_(x)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        gated = torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)
        return self.output_norm(self.down_proj(gated)).add_(x).mul_(self.scalar)


def gemma4_layer(
    weights: DraftWeights, spec: ModelSpec, index: int, *, keys_are_values: bool
) -> Gemma4Layer:
    name: Callable[[str], str] = f"layers.{index}.{{}}.weight".format
    eps, heads, kv_heads = spec.rms_norm_eps, spec.num_heads, spec.num_kv_heads
    q_norm = weights.tensor(name("self_attn.q_norm")).expand(heads, -1)
    k_norm = weights.tensor(name("self_attn.k_norm")).expand(kv_heads, -1)
    ones = torch.ones(spec.head_dim, dtype=weights.dtype, device=weights.device)
    kinds = "qk" if keys_are_values else "qkv"
    return Gemma4Layer(
        index=index,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=spec.head_dim,
        input_norm=weights.norm(name("input_layernorm"), eps),
        qkv=weights.linear(*(name(f"self_attn.{kind}_proj") for kind in kinds)),
        qk_norm=RMSNorm(torch.cat([q_norm, k_norm]), eps),
        v_norm=RMSNorm(ones, eps),
        o_proj=weights.linear(name("self_attn.o_proj")),
        attention_norm=weights.norm(name("post_attention_layernorm"), eps),
        mlp_norm=weights.norm(name("pre_feedforward_layernorm"), eps),
        gate_up=weights.linear(name("mlp.gate_proj"), name("mlp.up_proj")),
        down_proj=weights.linear(name("mlp.down_proj")),
        output_norm=weights.norm(name("post_feedforward_layernorm"), eps),
        scalar=weights.tensor(f"layers.{index}.layer_scalar"),
    )
