"""The pieces of a decoder layer and the layer itself. Knows nothing of batches, caches or loading.

Every operation here treats tokens independently and in a fixed order, so a token's result has the
same bits alone and in any batch. Operations are few because at the size of the embedded model
dispatching them is most of the cost.
"""

import sys
from dataclasses import dataclass
from typing import Protocol

import torch

from specserve.models.parts import Gate, Linear
from specserve.models.projection import Projection
from specserve.models.rope import rotate

VECTOR = 64  # elements: a multiple of what the vector loops of any processor take at once
PARALLEL_GRAIN = 32768  # elements below which torch leaves an operation to one thread


class AttentionRun(Protocol):
    """The part of `specserve.models.attention.Attention` that a layer needs."""

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor: ...


class RMSNorm:
    """x / rms(x) * weight over the last dimension; `weight` may span the last two."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._shape = (weight.shape[-1],)
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, self._shape, None, self.eps).mul_(self.weight)


class SwiGLU:
    """silu(gates) * ups: [N, 2 * width], gates first -> [N, width]; the input is overwritten.

    torch's CPU kernel computes whole vectors with one routine and what is left over with another,
    and their bits differ. Rows of whole vectors, in blocks too small to be split between threads
    anywhere else, keep every element in a whole vector. CUDA treats all elements alike.
    """

    def __init__(self, width: int, *, in_whole_vectors: bool) -> None:
        self._width = width
        self._padding = -width % VECTOR if in_whole_vectors else 0
        most = (PARALLEL_GRAIN - 1) // (width + self._padding)
        self._block_rows = max(1, most) if in_whole_vectors else sys.maxsize

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up[:, : self._width], gate_up[:, self._width :]
        if self._padding:
            gate = torch.nn.functional.pad(gate, (0, self._padding))
        for start in range(0, gate.shape[0], self._block_rows):
            torch.nn.functional.silu(gate[start : start + self._block_rows], inplace=True)
        return gate[:, : self._width] * up if self._padding else gate * up


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
    gate: Gate
    down_proj: Projection

    def __call__(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionRun,
    ) -> torch.Tensor:
        """x [N, H] -> [N, H], a new tensor; `rotary` comes from `RotaryTable.at`."""
        x = self.attend(self.input_norm(x), rotary, attention).add_(x)
        return self.feed_forward(self.mlp_norm(x)).add_(x)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gated product of normalised x [N, H]: [N, H], a new tensor."""
        return self.down_proj(self.gate(self.gate_up(x)))

    def attend(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attention: AttentionRun,
    ) -> torch.Tensor:
        """Attention of normalised x [N, in]: [N, H], a new tensor."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv(x).view(-1, heads + 2 * kv_heads, self.head_dim)
        # Slices: torch's own split takes four times as long to dispatch.
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        qk = rotate(qk, *rotary)
        q, k = qk[:, :heads], qk[:, heads:]
        return self.o_proj(attention.run(self.index, q, k, v).flatten(1))
