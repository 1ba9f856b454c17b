"""Fused norms and rotation tried on a few numbers against their definition, before they are used.

They are compiled where they run, so whether they compile and are right is not known before.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.cuda.fused_layers import FusedOps, FusedReference

_NUM_TOKENS, _NUM_POSITIONS = 5, 64
_EPS = 1e-5
# Of numbers up to 4, in 16 bits: a unit of bfloat16 is .016 there.
_TOLERANCE = 0.04


class LayerSizes(NamedTuple):
    """What of a model its norms and rotations are of."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype


def trial_of_layers(ops: FusedOps, sizes: LayerSizes, device: torch.device) -> str:
    """What is wrong with `ops` at these sizes on `device`, in words; empty if nothing is.

    Compiles them if that was not done before.
    """
    try:
        return _Trial(ops, sizes, device).obstacle()
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise what they like
        reason = str(error).strip().splitlines()
        return f"flashinfer: {type(error).__name__}: {reason[0] if reason else 'no reason given'}"


class _Trial:
    def __init__(self, ops: FusedOps, sizes: LayerSizes, device: torch.device) -> None:
        self._ops, self._sizes, self._device = ops, sizes, device
        self._generator = torch.Generator().manual_seed(0)

    def _random(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=self._generator)
        return numbers.to(self._device, self._sizes.dtype)

    def obstacle(self) -> str:
        for name, made in (
            ("norm", self._norm),
            ("norm of heads", self._norm_of_heads),
            ("norm of a sum", self._add_and_norm),
            ("rotation", self._rotate),
        ):
            pairs = zip(made(self._ops), made(FusedReference()), strict=True)
            error = max(
                (ours.float() - theirs.float()).abs().max().item() for ours, theirs in pairs
            )
            if not error <= _TOLERANCE:
                return f"flashinfer: its {name} is off by {error:.3g} here"
        return ""

    # Each begins from the same numbers, whoever computes.

    def _norm(self, ops: FusedOps) -> list[Tensor]:
        self._generator.manual_seed(1)
        x, weight = self._random(_NUM_TOKENS, self._sizes.hidden_size), self._weight()
        return [ops.norm(x, weight, _EPS)]

    def _norm_of_heads(self, ops: FusedOps) -> list[Tensor]:
        self._generator.manual_seed(2)
        q, k, weight = *self._queries_and_keys(), self._random(self._sizes.head_dim)
        return [ops.norm(q, weight, _EPS), ops.norm(k, weight, _EPS)]

    def _add_and_norm(self, ops: FusedOps) -> list[Tensor]:
        self._generator.manual_seed(3)
        x, residual = (self._random(_NUM_TOKENS, self._sizes.hidden_size) for _ in range(2))
        ops.add_and_norm(x, residual, self._weight(), _EPS)
        return [x, residual]

    def _rotate(self, ops: FusedOps) -> list[Tensor]:
        self._generator.manual_seed(4)
        q, k = self._queries_and_keys()
        angles = torch.randn(_NUM_POSITIONS, self._sizes.head_dim // 2, generator=self._generator)
        turning = torch.cat((angles.cos(), angles.sin()), dim=1).to(self._device)
        positions = torch.tensor([0, 7, 7, _NUM_POSITIONS - 1, 3]).to(self._device)
        ops.rotate(q, k, positions, turning)
        return [q, k]

    def _weight(self) -> Tensor:
        return self._random(self._sizes.hidden_size)

    def _queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Of tokens whose queries, keys and values lie beside each other."""
        heads, kv_heads = self._sizes.num_heads, self._sizes.num_kv_heads
        qkv = self._random(_NUM_TOKENS, heads + 2 * kv_heads, self._sizes.head_dim)
        return qkv[:, :heads], qkv[:, heads : heads + kv_heads]
