"""What captured forwards and passes ask of their attention, whichever computes it."""

from collections.abc import Hashable
from typing import Protocol, TypeVar

from torch import Tensor

from specserve.backends.cuda.padded_blocks import BlockBatch
from specserve.models.attention import AttentionBatch


class Shape(Hashable, Protocol):
    """All that operations of a captured forward depend on, but what is in memory."""

    @property
    def num_tokens(self) -> int:
        """Padding included."""
        ...


class ShapedAttention(Protocol):
    """Attention of batches of one shape; `fill` comes before what is captured, `begin` first in it.

    What pads N tokens follows the last.
    """

    sources: Tensor  # [N] which token of the batch each one is
    positions: Tensor  # [N]

    def fill(self, batch: AttentionBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        ...

    def begin(self) -> None:
        """What all layers of one forward need."""
        ...

    def end(self) -> None:
        """Give back what `begin` made."""
        ...

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attention.run`, of N tokens."""
        ...

    def unpadded(self, x: Tensor) -> Tensor:
        """Those rows of x [N, ...] that are tokens of the batch, in its order."""
        ...


_Shape = TypeVar("_Shape", bound=Shape)


class GraphAttention(Protocol[_Shape]):
    """Attention of one model's captured forwards."""

    def shape_of(self, batch: AttentionBatch) -> _Shape | None:
        """The one that holds `batch`; None where padding costs more than it may save."""
        ...

    def make(self, shape: _Shape) -> ShapedAttention: ...


class ShapedBlocks(Protocol):
    """Attention of blocks of one shape; `fill` comes before what is captured, `begin` first in it.

    The pass is of N tokens: blocks, gaps and padding.
    """

    positions: Tensor  # [N]

    def fill(self, batch: BlockBatch) -> None:
        """From now on it is `batch`, which is of its shape."""
        ...

    def begin(self) -> Tensor:
        """What all layers of one pass need; its token ids [N]."""
        ...

    def end(self) -> None:
        """Give back what `begin` made."""
        ...

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, heads, head_dim], k and v [N, kv_heads, head_dim]: like q."""
        ...

    def of_blocks(self, x: Tensor) -> Tensor:
        """Those rows of x [N, H] that are blocks' tokens: [B, S, H], blocks of the batch first."""
        ...


_BlockShape = TypeVar("_BlockShape", bound=Hashable)


class BlockGraphs(Protocol[_BlockShape]):
    """Attention of one block drafter's captured passes."""

    def shape_of(self, batch: BlockBatch, min_gap: int) -> _BlockShape | None:
        """The one that holds `batch`; None where padding costs more than it may save.

        `min_gap`: gaps are laid out that long at least, where they are laid out alike.
        """
        ...

    def make(self, shape: _BlockShape) -> ShapedBlocks: ...
