"""Parts of layers on a CPU whose products are machine code of ours."""

from collections.abc import Iterator, Sequence

import torch

from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.row_kernels import RowKernels, row_kernels
from specserve.models.dealing import Shares
from specserve.models.layers import SwiGLU
from specserve.models.parts import Gate, Linear

_HALF_MAX = torch.finfo(torch.float16).max


class CompiledLinear:
    """Machine code of ours: the fastest for few rows, invariant by construction.

    A weight that is kept in 16 bits is half as much to read; sums are float32, and so are inputs
    but for those storages that round them.
    """

    def __init__(self, weight: torch.Tensor, kernels: RowKernels) -> None:
        self.kernels = kernels
        self.weight = kernels.pack(weight)  # [panels, in, panel]
        self._out_size = weight.shape[0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.kernels.product(x.reshape(-1, x.shape[-1]), self.weight)
        if y.shape[1] != self._out_size:
            y = y[:, : self._out_size].contiguous()
        return y.view(*x.shape[:-1], self._out_size)


class CpuParts:
    """See `LayerParts`; in float32, whatever weights are kept in.

    With `half_weights` weights are kept in 16 bits: exactly, in bfloat16 or float16; or, with
    `may_round`, in float16 if that has room for them. `input_bits` is how many inputs have at
    least, where fewer make products faster. With 16, inputs of weights that bfloat16 holds are
    rounded to that: for targets that are served so. With 8, weights may be of 8 bits, too: for
    drafters, whose distribution may be any.
    """

    def __init__(
        self,
        *,
        deterministic: bool,
        half_weights: bool = False,
        may_round: bool = True,
        input_bits: int = 32,
        rounded_to: torch.dtype = torch.float32,
    ) -> None:
        self.dtype = torch.float32
        self.rounded_to = rounded_to
        self.device = torch.device("cpu")
        self.deterministic = deterministic
        self.any_halved = False
        self._halves = half_weights
        self._may_round = may_round
        self._input_bits = input_bits

    def linear(self, parts: Sequence[torch.Tensor], shares: Shares | None = None) -> Linear:
        weight = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        kernels = self._kernels_for(weight)
        self.any_halved |= kernels.storage is not Storage.FLOAT32
        return CompiledLinear(weight, kernels)

    def quantizes(self, weight: torch.Tensor) -> bool:
        return self._kernels_for(weight).storage is Storage.INT8

    def gate(self, width: int) -> Gate:
        return SwiGLU(width, in_whole_vectors=True)

    def _kernels_for(self, weight: torch.Tensor) -> RowKernels:
        """Of the fastest storage that does; where weights lose nothing, each rank chooses."""
        for storage in self._storages():
            kernels = row_kernels(storage)
            if kernels is not None and kernels.takes(weight) and self._suits(storage, weight):
                return kernels
        whole = row_kernels(Storage.FLOAT32)
        assert whole is not None, "whoever chose this backend has asked"
        return whole

    def _storages(self) -> Iterator[Storage]:
        """The fastest first: bytes are half as much to read."""
        if not self._halves:
            return
        if self._input_bits <= 8:
            yield Storage.INT8
        if self._input_bits <= 16:
            yield Storage.DOTTED
        yield from (Storage.BFLOAT16, Storage.FLOAT16)

    def _suits(self, storage: Storage, weight: torch.Tensor) -> bool:
        if storage is Storage.INT8 or torch.equal(weight, weight.to(storage.dtype).float()):
            return True
        return storage is Storage.FLOAT16 and self._may_round and _fits_float16(weight)


def can_halve_exactly() -> bool:
    """Whether weights that 16 bits hold are multiplied as such, without rounding, and faster."""
    return all(row_kernels(each) is not None for each in (Storage.BFLOAT16, Storage.FLOAT16))


def _fits_float16(weight: torch.Tensor) -> bool:
    """Whether float16 has room for every element."""
    return float(torch.stack(torch.aminmax(weight)).abs().max()) <= _HALF_MAX
