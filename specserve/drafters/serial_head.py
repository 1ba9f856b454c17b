"""The serial part of a block: what turns a slot's base logits into those its token is drawn from.

A head sees the tokens drawn so far and nothing else, so that confidences and distributions never
depend on a token they are about.
"""

from typing import Protocol

from torch import Tensor


class SerialRun(Protocol):
    """The state of B blocks on their way through the slots."""

    def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
        """Logits [B, V] of `slot`, after tokens [B] stood in the slot before (0: the anchors).

        Call once a slot, in order: they take the place of the slot's base logits.
        """
        ...


class SerialHead(Protocol):
    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        """hidden [B, G, H], base_logits [B, G, V] float32; the latter are overwritten."""
        ...
