"""The pieces of a decoder layer and the layer itself. Knows nothing of batches, caches or loading.

Every operation here treats tokens independently and in a fixed order, so a token's result has the
same bits alone and in any batch. Operations are few because at the size of the embedded model
dispatching them is most of the cost.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from specserve.model.linear import Linear
from specserve.model.projection import Projection
from specserve.model.rope import rotate


class AttentionRun(Protocol):
    """The part of `specserve.model.attention.Attention` that a layer needs."""

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor: ...


class RMSNorm:
    """x / rms(x) * weight over the last dimension; `weight` may span the last two."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._shape = (size,)
        self._weight = weight
        self._eps = eps
        # sqrt(sum + eps * n) = hypot(norm, sqrt(eps * n)): four operations instead of seven. Its
        # float32 bits equal nobody else's, so other dtypes and devices keep torch's own kernel.
        self._short = weight.dtype == torch.float32 and weight.device.type == "cpu"
        self._scaled_weight = weight * size**0.5
        self._scaled_eps = torch.tensor((eps * size) ** 0.5, dtype=weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._short:
            norm = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._scaled_eps)
            return x.div(norm).mul_(self._scaled_weight)
        return torch.nn.functional.rms_norm(x, self._shape, None, self._eps).mul_(self._weight)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer with this rank's heads and columns. `qk_norm` is None where there is none."""

    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    input_norm: RMSNorm
    qkv: Linear  # [N, H] -> [N, (heads + 2 * kv_heads) * head_dim]: queries, keys, values
    qk_norm: RMSNorm | None  # over queries and keys together, weight [heads + kv_heads, head_dim]
    o_proj: Projection
    mlp_norm: RMSNorm
    gate_up: Linear  # [N, H] -> [N, 2 * width]: gates, then ups
    down_proj: Projection

    def __call__(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionRun,
    ) -> torch.Tensor:
        """x [N, H] -> [N, H], a new tensor; `rotary` comes from `RotaryTable.at`."""
        x = self._attend(self.input_norm(x), rotary, attention).add_(x)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return self.down_proj(torch.nn.functional.silu(gate).mul_(up)).add_(x)

    def _attend(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionRun,
    ) -> torch.Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv(x).view(-1, heads + 2 * kv_heads, self.head_dim)
        qk, v = qkv.split((heads + kv_heads, kv_heads), 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q, k = rotate(qk, *rotary).split((heads, kv_heads), 1)
        return self.o_proj(attention.run(self.index, q, k, v).flatten(1))
