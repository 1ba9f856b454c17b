"""Matrices stored as bytes with scales: half as large as in 16 bits, and read as float32.

`X` int8 [out, in] stands beside `X_scale` float16 [out, groups], one number for every 64 of a row's
elements (fewer at its end). Groups of 64 are those in which a CPU's drafters multiply, so what is
packed there once more loses nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from specserve.errors import Unsupported

SCALE = "_scale"  # behind the name of what it scales
DTYPE, SCALE_DTYPE = "I8", "F16"  # as safetensors calls them
GROUP = 64
_LARGEST = 127
_SMALLEST_SCALE = 2.0**-24  # of float16, subnormal ones included


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes [out, in] and scales [out, groups] of a matrix, to the nearest."""
    groups = _in_groups(weight.float())
    scales = (groups.abs().amax(-1) / _LARGEST).half()
    steps = groups / scales.float().clamp(min=_SMALLEST_SCALE)[..., None]
    rounded = steps.round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return rounded.flatten(1)[:, : weight.shape[1]].contiguous(), scales


def unpack(rounded: Tensor, scales: Tensor) -> Tensor:
    """The matrix [out, in] float32 of its bytes and scales."""
    groups = _in_groups(rounded.float()) * scales.float()[..., None]
    return groups.flatten(1)[:, : rounded.shape[1]].contiguous()


def packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With every matrix of floating point as bytes and scales; all else as it is."""
    stored = dict[str, Tensor]()
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.is_floating_point():
            stored[name], stored[name + SCALE] = pack(weight)
        else:
            stored[name] = weight
    return stored


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `packed` stored, as it is read."""
    return {
        name: unpack(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor
        for name, tensor in stored.items()
        if not name.endswith(SCALE)
    }


def scaled_names(names: Collection[str]) -> Iterator[str]:
    """Those that have scales beside them."""
    return (name for name in names if name + SCALE in names)


class ScaledBytes:
    """One such matrix of an open file, with what is asked of a safetensors file and its slices."""

    def __init__(self, file: Any, name: str) -> None:  # noqa: ANN401 - safetensors' is untyped
        """Raises `Unsupported`, without the folder, if they do not belong together."""
        self._file, self._name = file, name
        weight, scale = (file.get_slice(part) for part in (name, name + SCALE))
        self._shape = weight.get_shape()
        if (weight.get_dtype(), scale.get_dtype()) != (DTYPE, SCALE_DTYPE):
            kinds = f"{weight.get_dtype()} with scales of {scale.get_dtype()}"
            raise Unsupported(f"tensor {name}: {kinds}, not {DTYPE} with {SCALE_DTYPE}")
        shape = scale.get_shape()
        if len(self._shape) != 2 or shape != [self._shape[0], -(-self._shape[1] // GROUP)]:
            raise Unsupported(f"tensor {name}: scales of shape {shape} for {self._shape}")

    def get_tensor(self, _name: str) -> Tensor:
        return unpack(*(self._file.get_tensor(part) for part in (self._name, self._name + SCALE)))

    def get_slice(self, _name: str) -> "ScaledBytes":
        return self

    def get_shape(self) -> list[int]:
        return self._shape

    def get_dtype(self) -> str:
        return DTYPE

    def __getitem__(self, part: tuple[slice, ...]) -> Tensor:
        return self.get_tensor(self._name)[part]


def _in_groups(matrix: Tensor) -> Tensor:
    """[out, in] -> [out, groups, GROUP], zeros behind the last."""
    missing = -matrix.shape[1] % GROUP
    return torch.nn.functional.pad(matrix, (0, missing)).unflatten(1, (-1, GROUP))
