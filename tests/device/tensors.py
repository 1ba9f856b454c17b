"""A tensor that says it is on a CUDA device, and has its values on the CPU.

What its operations mean, `tests.device.pretended` decides; outside of that it can do nothing.
"""

from typing import Any

import torch

_ATEN = torch.ops.aten


class PretendedTensor(torch.Tensor):
    """`values_` is a tensor of the CPU."""

    values_: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: torch.Tensor, device: torch.device) -> "PretendedTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=device,
        )
        made.values_ = real
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} of a tensor that outlived its pretended device")

    def __repr__(self, **_: object) -> str:
        return f"pretended {self.values_!r}"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: object, **__: object) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    # torch's own methods of these names look for a driver before anybody can intercept them.

    def __invert__(self) -> torch.Tensor:
        return torch.bitwise_not(self)

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return _ATEN.copy_(self, source, non_blocking)

    def nonzero(self, **kwargs: Any) -> torch.Tensor:
        return _ATEN.nonzero(self)

    def contiguous(self, **kwargs: Any) -> torch.Tensor:
        return _ATEN.contiguous(self, **kwargs)

    def __getitem__(self, key: Any) -> torch.Tensor:
        return active().get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        active().set(self, key, value)


def active() -> Any:
    """The pretended device that is on in this thread."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    assert mode is not None, "a tensor outlived its pretended device"
    return mode


def values_of(x: Any) -> Any:
    """The CPU's tensors in place of those of the device, in lists and tuples too."""
    if isinstance(x, PretendedTensor):
        return x.values_
    return type(x)(map(values_of, x)) if isinstance(x, list | tuple) else x


def as_on(device: torch.device, result: Any, ours: list) -> Any:
    """The result of a kernel as tensors of `device`; what it wrote to is what was given."""
    known = {id(tensor.values_): tensor for tensor in ours}

    def of(real: torch.Tensor) -> torch.Tensor:
        given = known.get(id(real))
        if given is None:
            return PretendedTensor(real, device) if device.type == "cuda" else real
        if given.shape != real.shape or given.stride() != real.stride():
            raise NotImplementedError("an operation changed the shape of a tensor in place")
        return given

    if isinstance(result, list | tuple):
        return type(result)(of(x) if isinstance(x, torch.Tensor) else x for x in result)
    return of(result) if isinstance(result, torch.Tensor) else result
