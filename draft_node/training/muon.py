"""Muon: momentum, orthogonalised matrix by matrix (Jordan et al. 2024).

Ours because torch.optim.Muon always multiplies in bfloat16, which a CPU without bfloat16 units
emulates at about one hundredth of its float32 speed: a step took 16 s instead of 2.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from draft_node.training.device import fast_bfloat16

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that drives singular values towards 1
_STEPS = 5


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with its singular values driven to about 1 (0.5..1.5), [m, n] -> [m, n]."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide.bfloat16() if fast_bfloat16(matrix.device) else wide.float()
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if wide is not matrix else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled to the RMS of AdamW's updates."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonalised(gradient.lerp(momentum, group["momentum"]))
        scale = 0.2 * max(parameter.shape) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * scale)
