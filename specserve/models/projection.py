"""How a computation whose inputs are sharded over ranks comes back to full hidden states.

The attention output and the gated activations of a rank are its own heads and columns. o_proj and
down_proj close them, in one of two ways behind the same call:

- `GatheredProjection` is exact: inputs are gathered, each rank computes some output columns from
  whole rows, and these are gathered. No sum crosses ranks, so the number of ranks leaves no trace.
- `ReducedProjection` is the usual one: each rank multiplies its inputs, and the partial sums are
  added across ranks. One collective instead of two, but the sum's order depends on their number.

docs/decisions/0004-tensor-parallel.md has the reasons and the costs.
"""

from typing import Protocol

import torch

from specserve.models.dealing import Shares
from specserve.models.parallel import TensorParallel
from specserve.models.parts import Linear


class Projection(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's inputs [N, its share] -> full outputs [N, out], equal on every rank."""
        ...


class GatheredProjection:
    """`linear` takes all inputs and gives this rank's share of the outputs."""

    def __init__(
        self, linear: Linear, parallel: TensorParallel, inputs: Shares, outputs: Shares
    ) -> None:
        """`inputs`, `outputs`: every rank's, in order."""
        self.linear = linear
        self._parallel = parallel
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        whole = self._parallel.all_gather(x, self._inputs)
        return self._parallel.all_gather(self.linear(whole), self._outputs)


class ReducedProjection:
    """`linear` takes this rank's share of the inputs and gives a part of every output's sum."""

    def __init__(self, linear: Linear, parallel: TensorParallel) -> None:
        self.linear = linear
        self._parallel = parallel

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._parallel.all_reduce(self.linear(x))
