"""What travels from device memory to device memory: entries of four bytes, end to end as int32.

Nobody looks at them on the host, which would have to wait for the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.transport.link.frames import LinkLimits, require

ENTRY_BYTES = 4


def joined(tensors: Sequence[Tensor], out: Tensor) -> None:
    """All entries into `out`, int32 [n], which has room for exactly as many; one kernel."""
    torch.cat([tensor.reshape(-1).view(torch.int32) for tensor in tensors], out=out)


class TensorEntries:
    """A `DevicePart`: `entries` int32 [n], the owner's own."""

    def __init__(self, entries: Tensor) -> None:
        self._entries = entries
        self._at = 0

    @property
    def num_bytes(self) -> int:
        return self._entries.nbytes

    def token_ids(self, count: int, limits: LinkLimits) -> Tensor:
        """Ids out of range become some that are: a drafter that looked them up would end."""
        return self.ids(count).clamp(0, limits.vocab_size - 1)

    def ids(self, count: int) -> Tensor:
        """int32 [count]."""
        start, self._at = self._at, self._at + count
        require(self._at <= len(self._entries), "device part shorter than its counts")
        return self._entries[start : self._at]

    def numbers(self, count: int) -> Tensor:
        """float32 [count]."""
        return self.ids(count).view(torch.float32)

    def finish(self) -> None:
        require(self._at == len(self._entries), "device part longer than its counts")
