"""Muon for the hidden matrices, AdamW for embeddings and norms, under one interface.

Muon (Jordan et al. 2024) orthogonalises the momentum of each matrix and is reported to need far
fewer tokens than AdamW for the same loss (not compared here). Both optimizers together took 0.12 of
1.64 s for a step of 8,192 tokens on two CPU cores. Embeddings and gains are not linear maps, so
AdamW keeps them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from draft_node.training.checkpoint import refuse_other_shape
from draft_node.training.muon import Muon
from draft_node.training.trainable import Trainable

# From step 196 of a run at (6e-3, 3e-3), 12e-3 for Muon or 9e-3 for AdamW gave 4.54 and 4.57 over
# the next 20 steps against 4.45; so half was then taken for Muon and two thirds for AdamW.
MUON_LR = 3e-3  # in units of AdamW: the update RMS is matched to it
ADAM_LR = 2e-3
WEIGHT_DECAY = 0.1
# What is kept of a parameter that has had a gradient, by AdamW or by Muon.
_SLOTS = ({"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"})


@dataclass(frozen=True)
class OptimizerConfig:
    """Peak learning rates, and which matrices are no linear maps of hidden states."""

    muon_lr: float | None = MUON_LR  # None: AdamW trains everything
    adam_lr: float = ADAM_LR
    weight_decay: float = WEIGHT_DECAY
    tables: tuple[str, ...] = ("embed_tokens", "lm_head")  # parts of their names; they are AdamW's


class Optimizer:
    """Both optimizers as one; learning rates are set as a fraction of their peaks."""

    def __init__(self, model: Trainable, config: OptimizerConfig) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = {id(p): name for name, p in named}
        self.parameters = [p for _, p in named]
        matrices, tables, gains = [], [], []
        for name, parameter in named:
            if parameter.ndim != 2:
                gains.append(parameter)
            elif config.muon_lr is None or any(part in name for part in config.tables):
                tables.append(parameter)
            else:
                matrices.append(parameter)
        adam = torch.optim.AdamW(
            [{"params": tables, "weight_decay": config.weight_decay / 10}, {"params": gains}],
            lr=config.adam_lr,
            betas=(0.9, 0.95),
            eps=1e-10,
            weight_decay=0.0,
        )
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [(adam, config.adam_lr)]
        if config.muon_lr is not None:
            muon = Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay)
            self._optimizers.insert(0, (muon, config.muon_lr))

    def step(self, scale: float) -> None:
        """Update with learning rates at `scale` (0..1) of their peaks, then drop gradients."""
        for optimizer, peak in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _states(self) -> Iterator[tuple[str, dict[str, Tensor], Tensor]]:
        for optimizer, _ in self._optimizers:
            for parameter in chain.from_iterable(g["params"] for g in optimizer.param_groups):
                yield self._names[id(parameter)], optimizer.state[parameter], parameter

    def state_tensors(self) -> dict[str, Tensor]:
        """Every state tensor under the name `<parameter>/<slot>`."""
        return {
            f"{name}/{slot}": tensor
            for name, state, _ in self._states()
            for slot, tensor in state.items()
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of state_tensors; raises ValueError if one is missing or has another shape."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, slot = key.rpartition("/")
            by_parameter.setdefault(name, {})[slot] = tensor
        for name, state, parameter in self._states():
            # A checkpoint from before the first step has no state yet.
            kept = by_parameter.get(name, {})
            if kept and kept.keys() not in _SLOTS:
                raise ValueError(f"of optimizer/{name} there is {', '.join(sorted(kept))} alone")
            for slot, tensor in kept.items():
                shape = () if slot == "step" else parameter.shape
                refuse_other_shape(f"optimizer/{name}/{slot}", tensor, shape)
                # AdamW counts its steps in a CPU scalar whatever the device of the parameter.
                device = "cpu" if slot == "step" else parameter.device
                state[slot] = tensor.to(device).clone()
