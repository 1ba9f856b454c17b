"""A link inside one process that carries tensors, as NCCL's does: device memory is a CPU's here.

What travels is joined and cut by the code of every link that carries tensors.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from specserve.transport.group_link.device_part import TensorEntries, joined
from specserve.transport.link.ends import DraftLinkEnd, Frame, TargetLinkEnd
from specserve.transport.link.envelope import Part


class TensorChannel:
    """One direction, a `Channel`."""

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, torch.Tensor]] = deque()
        self.num_entries = 0  # that have travelled

    def write(self, parts: Sequence[Part], device_part: Sequence[Any] = ()) -> bool:
        entries = torch.empty(sum(part.numel() for part in device_part), dtype=torch.int32)
        if len(entries):
            joined(device_part, entries)
        self.num_entries += len(entries)
        self._frames.append((b"".join(parts), entries))
        return True

    def read(self) -> Frame | None:
        if not self._frames:
            return None
        data, entries = self._frames.popleft()
        return Frame(bytearray(data), TensorEntries(entries) if len(entries) else None)

    def is_empty(self) -> bool:
        return not self._frames

    def drop(self) -> None:
        self._frames.clear()


class TensorTargetEnd(TargetLinkEnd):
    """The target's end of two channels."""

    carries_tensors = True


class TensorDraftEnd(DraftLinkEnd):
    """The draft's."""

    carries_tensors = True
