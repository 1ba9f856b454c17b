"""What `triton.language` is to one kernel, over arrays: the kernel's own source runs on a CPU.

Integers have the widths that they have there, so that what runs over is cut where it is cut there.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class Pointer(NamedTuple):
    """To elements of a tensor, which must be there."""

    elements: np.ndarray
    places: Any = 0

    @classmethod
    def to(cls, tensor: torch.Tensor) -> "Pointer":
        return cls(tensor.flatten().numpy())

    def __add__(self, offset: Any) -> "Pointer":  # type: ignore[override]
        return Pointer(self.elements, self.places + offset)


class Language:
    """The part of it that is used, for the program at `ids`."""

    int64, uint32, float32 = np.int64, np.uint32, np.float32
    static_range = staticmethod(range)

    def __init__(self) -> None:
        self.ids = (0, 0)

    def program_id(self, axis: int) -> np.ndarray:
        return np.array(self.ids[axis], np.int32)

    def arange(self, start: int, end: int) -> np.ndarray:
        return np.arange(start, end, dtype=np.int32)

    def cast(self, values: Any, dtype: type) -> np.ndarray:
        return np.asarray(values).astype(dtype)

    def umulhi(self, first: np.ndarray, second: int) -> np.ndarray:
        assert first.dtype == np.uint32
        return (first.astype(np.uint64) * np.uint64(second) >> np.uint64(32)).astype(np.uint32)

    def interleave(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.stack(np.broadcast_arrays(first, second), axis=-1).reshape(-1)

    def load(self, at: Pointer, mask: Any = True, other: int = 0) -> np.ndarray:
        places, mask = np.broadcast_arrays(np.asarray(at.places), mask)
        found = np.full(places.shape, other, at.elements.dtype)
        found[mask] = at.elements[places[mask]]
        return found

    def store(self, at: Pointer, values: np.ndarray, mask: Any) -> None:
        at.elements[at.places[mask]] = values[mask]


def run(
    kernel: Callable[..., None],
    language: Language,
    grid: tuple[int, int],
    *given: Any,
    **sizes: int,
) -> None:
    """Every program of `grid`, one after the other; tensors of `given` become pointers."""
    pointers = [Pointer.to(x) if isinstance(x, torch.Tensor) else x for x in given]
    with np.errstate(over="ignore"):
        for language.ids in itertools.product(*map(range, grid)):
            kernel(*pointers, **sizes)
