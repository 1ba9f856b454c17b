"""Matrix products, and which of them a linear layer gets.

On a CPU that is `CompiledLinear` wherever its machine code can be made. Elsewhere it is
`TiledLinear` where a token's result may not depend on the tokens beside it, and `PlainLinear` where
it may. The first two are invariant by construction.
See docs/decisions/0002-deterministic-arithmetic.md and 0014-row-kernels.md.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from specserve.backends.cpu.row_kernels import RowKernels, Storage, row_kernels
from specserve.models.dealing import Share, Shares

PIECES = 8  # that a tiled product's output columns come in
HALF_MAX = torch.finfo(torch.float16).max

_LOG = logging.getLogger(__name__)


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out]."""
        ...


class PlainLinear:
    """torch's own product, whose bits may depend on N."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight)


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


class TiledLinear:
    """Products of one fixed shape only: tiles of `tile` rows, output columns in fixed pieces.

    Every multiplication the kernel ever sees has the same shape, whatever the batch and the number
    of ranks, so equal rows give equal bits on any kernel that is a function of its input.
    """

    def __init__(self, parts: Sequence[torch.Tensor], shares: Shares, tile: int) -> None:
        """`parts`: weights stacked, of each those rows that `shares` says."""
        self._pieces = [
            piece
            for part, share in zip(parts, shares, strict=True)
            for piece in fixed_pieces(part, share)
        ]
        self._tile = tile

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_tokens = x.shape[0]
        padded = torch.nn.functional.pad(x, (0, 0, 0, -num_tokens % self._tile))
        rows: list[torch.Tensor] = []
        for view in padded.split(self._tile):
            tile = view.clone()  # libraries may choose by alignment, and a view has any
            columns = [
                torch.nn.functional.linear(tile, piece)[:, wanted] for piece, wanted in self._pieces
            ]
            rows.append(torch.cat(columns, dim=1))
        return torch.cat(rows)[:num_tokens]


class Kernels:
    """Chooses the product of every linear layer of one model on one device.

    | device, dtype                      | deterministic | product          |
    |------------------------------------|---------------|------------------|
    | CPU, float32, code can be compiled | either        | `CompiledLinear` |
    | any other                          | yes           | `TiledLinear`    |
    | any other                          | no            | `PlainLinear`    |

    The other arguments choose a storage of `CompiledLinear`. With `half_weights` weights are kept
    in 16 bits: exactly, in bfloat16 or float16; or, with `may_round`, in float16 if that has room
    for them. `input_bits` is how many inputs have at least, where fewer make products faster. With
    16, inputs of weights that bfloat16 holds are rounded to that: for targets that are served so.
    With 8, weights may be of 8 bits, too: for drafters, whose law may be any.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool,
        half_weights: bool = False,
        may_round: bool = True,
        input_bits: int = 32,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.rounded_to = dtype  # what tensors are rounded to, whatever they compute in
        self.deterministic = deterministic
        self.any_halved = False  # whether a weight so far is kept in 16 bits or fewer
        is_on_cpu = device.type == "cpu"
        # 64 rows cost CUDA what 8 do; on CPU a tile of 8 is one verification.
        self._tile = 8 if is_on_cpu else 64
        self._compiles = is_on_cpu and dtype == torch.float32 and can_compile()
        self._halves = half_weights
        self._may_round = may_round
        self._input_bits = input_bits

    @classmethod
    def of_16_bits(cls, dtype: torch.dtype, *, deterministic: bool) -> "Kernels":
        """For a target that is to be served in `dtype` on a CPU.

        Its weights are rounded to that, and inputs where bfloat16 makes products faster. All else
        is float32: torch's own arithmetic of 16 bits takes several times as long.
        """
        halves = can_halve_exactly()
        if not halves:
            _LOG.warning("%s: rounded, and kept in float32: no products of 16 bits here", dtype)
        kernels = cls(
            dtype=torch.float32,
            device=torch.device("cpu"),
            deterministic=deterministic,
            half_weights=halves,
            may_round=False,
            input_bits=16 if dtype == torch.bfloat16 else 32,
        )
        kernels.rounded_to = dtype
        return kernels

    def linear(self, parts: Sequence[torch.Tensor], shares: Shares | None = None) -> Linear:
        """The product with `parts`, each [rows, in], stacked.

        `shares`: which rows of whole weights they are; None: all, of a model that is not dealt.
        """
        if self.deterministic and not self._compiles:
            whole = tuple(Share(0, len(part), len(part)) for part in parts)
            return TiledLinear(parts, shares or whole, self._tile)
        weight = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        if not self._compiles:
            return PlainLinear(weight)
        kernels = self._kernels_for(weight)
        self.any_halved |= kernels.storage is not Storage.FLOAT32
        return CompiledLinear(weight, kernels)

    def quantizes(self, weight: torch.Tensor) -> bool:
        """Whether products with it are of 8 bits."""
        return self._compiles and self._kernels_for(weight).storage is Storage.INT8

    def _kernels_for(self, weight: torch.Tensor) -> RowKernels:
        """Of the fastest storage that does; where weights lose nothing, each rank chooses."""
        for storage in self._storages():
            kernels = row_kernels(storage)
            if kernels is not None and kernels.takes(weight) and self._suits(storage, weight):
                return kernels
        whole = row_kernels(Storage.FLOAT32)
        assert whole is not None, "can_compile has asked"
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


def fixed_pieces(part: torch.Tensor, share: Share) -> list[tuple[torch.Tensor, slice]]:
    """A weight's rows [share, in] in pieces that any number of ranks would use, all of one shape.

    With each, which rows of it are of the share. What is another rank's is zeros: a kernel computes
    a column from that column, in its place in the shape.
    """
    width = -(-share.size // PIECES)
    pieces: list[tuple[torch.Tensor, slice]] = []
    for first in range(share.start // width * width, share.stop, width):
        start, stop = max(first, share.start), min(first + width, share.stop)
        wanted = slice(start - first, stop - first)
        piece = part.new_zeros(width, part.shape[1])
        piece[wanted] = part[start - share.start : stop - share.start]
        pieces.append((piece, wanted))
    return pieces


def can_compile() -> bool:
    """Whether this installation and processor have `CompiledLinear`."""
    return row_kernels(Storage.FLOAT32) is not None


def can_halve_exactly() -> bool:
    """Whether weights that 16 bits hold are multiplied as such, without rounding, and faster."""
    needed = (Storage.FLOAT32, Storage.BFLOAT16, Storage.FLOAT16)
    return all(row_kernels(storage) is not None for storage in needed)


def _fits_float16(weight: torch.Tensor) -> bool:
    """Whether float16 has room for every element."""
    return float(torch.stack(torch.aminmax(weight)).abs().max()) <= HALF_MAX
