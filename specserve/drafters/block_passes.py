"""The parallel passes that a drafter of blocks needs of a backend."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import Context


class BlockPasses(Protocol):
    """Over the contexts of all rows."""

    @property
    def context(self) -> Context[Any]: ...

    def write_context(
        self, features: Tensor, positions: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> None:
        """Keep entries of N verified tokens: features [N, H], where they stand and are kept [N]."""
        ...

    def enter(self, entering: Entering) -> None:
        """Compute pending tokens alone."""
        ...

    def blocks(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        token_ids: Tensor,
        entering: Entering | None,
        gap_ids: Sequence[Sequence[int]] | None = None,
        min_gap: int = 0,
    ) -> Tensor:
        """Final hidden states [B, T, H] of blocks token_ids [B, T], whose tokens see each other.

        They stand behind the first `lengths` positions of their `rows` and the tokens of their
        gaps, which see each other causally and no block. Pending tokens are computed along.
        """
        ...
