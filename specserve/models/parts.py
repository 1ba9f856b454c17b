"""What layers are made of: products, norms and gates, as a backend makes them."""

from collections.abc import Sequence
from typing import Protocol

import torch

from specserve.models.dealing import Shares


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out]."""
        ...


class Gate(Protocol):
    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gates) * ups: [N, 2 * width], gates first -> [N, width]; overwrites its input."""
        ...


class LayerParts(Protocol):
    """Makes the parts of one model on one device."""

    dtype: torch.dtype  # that is computed with
    rounded_to: torch.dtype  # what tensors are rounded to, whatever they compute in
    device: torch.device
    deterministic: bool  # a row's bits depend neither on its batch nor on the number of ranks
    any_halved: bool  # whether a weight so far is kept in 16 bits or fewer

    def linear(self, parts: Sequence[torch.Tensor], shares: Shares | None = None) -> Linear:
        """The product with `parts`, each [rows, in], stacked.

        `shares`: which rows of whole weights they are; None: all, of a model that is not dealt.
        """
        ...

    def gate(self, width: int) -> Gate: ...

    def quantizes(self, weight: torch.Tensor) -> bool:
        """Whether products with it are of 8 bits."""
        ...
