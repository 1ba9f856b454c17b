"""What a CUDA graph is to a forward, without CUDA: operations kept with their memory, done again.

Whatever the host knew while they were recorded is what they go by forever; a result lies where it
lay then. So what a recording must not depend on shows as a wrong result.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Device(Protocol):
    def num_waits(self) -> int: ...


class _Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Callable[..., Any], tuple, dict, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        self.done.append((func, args, kwargs, found))
        return found


class Tape:
    """Stands in for `CudaGraphs`; fails where a device would have to wait for the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.num_recorded = 0

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        function()
        waits = self._device.num_waits()
        with _Listener() as listener:
            function()
        assert self._device.num_waits() == waits, "a recorded forward waits for its device"
        self.num_recorded += 1

        def replay() -> None:
            for func, args, kwargs, kept in listener.done:
                _move(func(*args, **kwargs), kept)

        return replay


def _move(found: Any, kept: Any) -> None:
    """To where it was the first time, unless it is a view and there already."""
    if isinstance(found, list | tuple):
        for each, place in zip(found, kept, strict=True):
            _move(each, place)
    elif isinstance(found, torch.Tensor) and found is not kept:
        kept.copy_(found)
