"""The passes that a language model's chains need of a backend."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import Context
from specserve.drafters.row_layout import flat_positions


class ChainPasses(Protocol):
    """Call `plan` once a draft call, then `run` once a pass."""

    @property
    def context(self) -> Context[Any]: ...

    def enter(self, entering: Entering) -> None:
        """Compute pending tokens alone."""
        ...

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        """B chains behind the first `lengths` positions of their `rows`.

        The tokens that enter are computed here, or by the first pass along with its own.
        """
        ...

    def run(self, token_ids: Tensor) -> Tensor:
        """Final hidden states [B, H] of the chains' next tokens [B], valid until the next call."""
        ...


def entering_tokens(entering: Entering, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and positions, [N] each."""
    positions = flat_positions(entering.starts, entering.counts).to(device)
    return torch.tensor(entering.token_ids, device=device), positions
