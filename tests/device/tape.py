"""What a CUDA graph is to a function, without CUDA: operations kept with their memory, done again.

Whatever the host knew while they were captured is what they go by forever; a result lies where it
lay then; and what is captured together shares memory, so that whoever reads a result too late finds
another's. What a graph must not depend on shows as a wrong result.
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

    def made(self) -> list[torch.Tensor]:
        """In memory that the function took."""
        return [
            each
            for func, _, _, found in self.done
            if not any(each.alias_info for each in func._schema.returns)
            for each in (found if isinstance(found, list | tuple) else [found])
            if isinstance(each, torch.Tensor)
        ]


class Tape:
    """Stands in for `GraphCapture`; fails where a device would have to wait for the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: list[torch.Tensor] = []  # by all that was captured
        self.num_captured = 0

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        function()
        waits = self._device.num_waits()
        with _Listener() as listener:
            function()
        assert self._device.num_waits() == waits, "a captured function waits for its device"
        self.num_captured += 1
        self._made += listener.made()

        def replay() -> None:
            for tensor in self._made:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 1)
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
