"""The steps that EAGLE-3's chains need of a backend: a token each, fed with features."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specserve.drafters.context import TorchContext


class FeatureChains(Protocol):
    """Call `plan` once a draft call, then `follow` or `step` once a token of all B chains.

    Both are given tokens [B] and the features before them, [B, H]; what they return is valid until
    the next call.
    """

    @property
    def context(self) -> TorchContext: ...

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_steps: int,
        pads: Sequence[int] | None = None,
    ) -> None:
        """Chains behind the first `lengths` entries of their `rows`.

        Of each the first `pads` tokens are seen by nobody but themselves, and stand where the first
        real one does.
        """
        ...

    def follow(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """The features [B, H] that the next token continues."""
        ...

    def step(self, token_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and logits [B, DV] float32 of the token that comes next."""
        ...
