"""A target's layers with norms, residual sums and rotations as few kernels.

A layer's sum into the residual stream and the norm behind it are one operation, across layers too,
and rotating queries and keys is another: five in place of eleven a layer. They compute in float32
and round once, where the reference rounds in between, so that their bits are not the reference's.
`--deterministic` has none of this.
"""

from typing import Protocol

import torch
from torch import Tensor

from specserve.models.layers import AttentionRun, DecoderLayer, RMSNorm
from specserve.models.rope import turns
from specserve.models.transformer import EMBEDDING_TAP, Transformer


class FusedOps(Protocol):
    """What is fused; `FusedReference` is the definition."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last dimension: x [N, D] or [N, heads, D], weight [D].

        A new tensor; rows of `x` may be any distance apart.
        """
        ...

    def add_and_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        """In place, [N, D] each: `residual` becomes x + residual, and `x` the norm of that."""
        ...

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor, turning: Tensor) -> None:
        """In place: q and k [N, heads, D] turned by their tokens' angles.

        `positions` int64 [N]; `turning` float32 [P, D]: cos, then sin, of each pair of dimensions i
        and i + D / 2.
        """
        ...


class FusedReference:
    """By torch's operations, on any device."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide * _scale(wide, eps) * weight.float()).to(x.dtype)

    def add_and_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        total = x.float() + residual.float()
        residual.copy_(total)
        x.copy_(total * _scale(total, eps) * weight.float())

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor, turning: Tensor) -> None:
        cos, sin = turning.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        for x in (q, k):
            first, second = x.float().chunk(2, dim=-1)
            x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def _scale(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()


class FusedTransformer(Transformer):
    """`model`, over the same weights, by fused operations."""

    def __init__(self, model: Transformer, ops: FusedOps) -> None:
        super().__init__(
            model.config,
            embedding=model.embedding,
            layers=model.layers,
            final_norm=model.final_norm,
            lm_head=model.lm_head,
            rotary=model.rotary,
            parallel=model.parallel,
        )
        self._ops = ops
        spec = model.config
        halves = turns(spec.rope, head_dim=spec.head_dim, num_positions=model.num_positions)
        self._turning = torch.cat(halves, dim=1).to(model.embedding.device)
        # What follows each layer's sum into the residual.
        self._norms_behind = [*(layer.input_norm for layer in model.layers[1:]), model.final_norm]

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionRun,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        residual = self.embedding.index_select(0, token_ids)
        tapped: dict[int, Tensor] = {}
        if EMBEDDING_TAP in taps:
            tapped[EMBEDDING_TAP] = residual.clone()  # which the layers write to
        first = self.layers[0].input_norm
        x = self._ops.norm(residual, first.weight, first.eps)
        for layer, norm_behind in zip(self.layers, self._norms_behind, strict=True):
            x = self._attend(layer, x, positions, attention)
            self._add_and_norm(x, residual, layer.mlp_norm)
            x = layer.feed_forward(x)
            self._add_and_norm(x, residual, norm_behind)
            if layer.index in taps:
                tapped[layer.index] = residual.clone()
        return x, [tapped[tap] for tap in taps]

    def _add_and_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm) -> None:
        self._ops.add_and_norm(x, residual, norm.weight, norm.eps)

    def _attend(
        self, layer: DecoderLayer, x: Tensor, positions: Tensor, attention: AttentionRun
    ) -> Tensor:
        """See `DecoderLayer.attend`."""
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, layer.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:  # whose weight is one of queries and one of keys, repeated
            weight, eps = layer.qk_norm.weight, layer.qk_norm.eps
            q, k = self._ops.norm(q, weight[0], eps), self._ops.norm(k, weight[-1], eps)
        self._ops.rotate(q, k, positions, self._turning)
        return layer.o_proj(attention.run(layer.index, q, k, v).flatten(1))
