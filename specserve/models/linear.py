"""Matrix products whose result for a token does not depend on the tokens beside it.

On CPU that is `CompiledLinear`, by construction, wherever its machine code can be made. Elsewhere a
weight is repacked once by oneDNN; one copy serves every number of rows, and gives a row the same
bits wherever it stands, a single row of a long product excepted. None of this is documented, so
`Kernels` tries every shape it meets, pads few rows where that helps, and otherwise falls back to
`TiledLinear`, which is invariant by construction, too.
See docs/decisions/0002-deterministic-arithmetic.md and 0014-row-kernels.md.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from specserve.models.dealing import Share, Shares, StackedRows
from specserve.models.row_kernels import RowKernels, Storage, row_kernels

PIECES = 8  # that a tiled product's output columns come in
# What few rows are padded to. Four stream a weight 20-25 % faster than one where it was measured,
# and cost nothing where it stays in the cache; eight is for a machine whose bits differ below.
MIN_ROWS = (4, 8)
PROBED_ROWS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64)

_LOG = logging.getLogger(__name__)
_pack = torch.ops.mkldnn._reorder_linear_weight.default
_packed_linear = torch.ops.mkldnn._linear_pointwise.default
_pack_half = torch.ops.quantized.linear_prepack_fp16.default
_half_linear = torch.ops.quantized.linear_dynamic_fp16.default._op
HALF_MAX = torch.finfo(torch.float16).max


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out]."""
        ...


class PlainLinear:
    """torch's own product: the choice on CUDA, where bits may depend on N."""

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


class PackedLinear:
    """oneDNN with a prepacked weight, plain copy dropped; fewer than `min_rows` rows are padded."""

    def __init__(self, weight: torch.Tensor, min_rows: int = MIN_ROWS[0]) -> None:
        # The second argument only tells oneDNN which batch size to expect.
        self._weight = _pack(weight, 8)
        self._min_rows = min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_missing = self._min_rows - x.shape[0]
        if num_missing <= 0:
            return _packed_linear(x, self._weight, None, "none", [], "")
        padded = torch.nn.functional.pad(x, (0, 0, 0, num_missing))
        return _packed_linear(padded, self._weight, None, "none", [], "")[: x.shape[0]]


class HalfLinear:
    """A weight kept in float16, which is half as much to read; inputs and sums are float32.

    Few rows cost what their weights take to read. From 30 rows on it is no faster than
    `PackedLinear`, and no slower. For drafters on CPU, whose law may be any.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = _pack_half(weight, None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _half_linear(x, self._weight)

    @staticmethod
    def holds(weight: torch.Tensor) -> bool:
        """Whether float16 has room for every element."""
        return float(torch.stack(torch.aminmax(weight)).abs().max()) <= HALF_MAX


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
    """Chooses the kernel of every linear layer of one model on one device.

    `half_weights` keeps weights in 16 bits where this machine has products with such: exactly, in
    bfloat16 or float16; or, with `may_round`, in float16 if that has room for them. Without
    `CompiledLinear` they are always rounded, and stay whole if bits are to be `deterministic`.

    `may_pair` lets a matrix unit multiply what bfloat16 holds, which has other bits: only where all
    ranks' shares of a weight are such, or bits may depend on the number of ranks.

    `input_bits` is how many inputs have at least, where fewer make products faster. With 16, inputs
    of weights that bfloat16 holds are rounded to that: for targets that are served so. With 8,
    weights may be of 8 bits, too: for drafters, whose law may be any.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool,
        half_weights: bool = False,
        may_round: bool = True,
        may_pair: bool = True,
        input_bits: int = 32,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.rounded_to = dtype  # what tensors are rounded to, whatever they compute in
        self.deterministic = deterministic
        # 64 rows cost CUDA what 8 do; on CPU a tile of 8 is one verification.
        self._tile = 8 if device.type == "cpu" else 64
        on_cpu = device.type == "cpu"
        self._packs = on_cpu and can_pack(dtype)
        self._compiles = on_cpu and dtype == torch.float32 and can_compile()
        self._halves = half_weights and on_cpu and dtype == torch.float32 and can_halve()
        self._may_round = may_round
        self._may_pair = may_pair
        self._input_bits = input_bits
        self.any_halved = False
        self._verdicts: dict[tuple[int, tuple[Shares, ...]], int] = {}

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
            may_pair=dtype == torch.bfloat16,
            input_bits=16 if dtype == torch.bfloat16 else 32,
        )
        kernels.rounded_to = dtype
        return kernels

    def linear(self, parts: Sequence[torch.Tensor], rows: StackedRows | None = None) -> Linear:
        """The product with `parts`, each [rows, in], stacked.

        `rows`: which of whole weights' they are; None: all, of a model that is not dealt.
        """
        weight = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        if self._compiles:
            return CompiledLinear(weight, self._kernels_for(weight))
        if not self.deterministic:
            if self._halves and HalfLinear.holds(weight):
                self.any_halved = True
                return HalfLinear(weight)
            return PackedLinear(weight) if self._packs else PlainLinear(weight)
        rows = rows or StackedRows.whole([len(part) for part in parts])
        min_rows = self._min_rows(weight.shape[1], rows)
        if min_rows is not None:
            return PackedLinear(weight, min_rows)
        return TiledLinear(parts, rows.own, self._tile)

    def quantizes(self, weight: torch.Tensor) -> bool:
        """Whether products with it are of 8 bits."""
        return self._compiles and self._kernels_for(weight).storage is Storage.INT8

    def _kernels_for(self, weight: torch.Tensor) -> RowKernels:
        """Of the fastest storage that does; where weights lose nothing, each rank chooses."""
        for storage in self._storages():
            kernels = row_kernels(storage)
            if kernels is None or not kernels.takes(weight):
                continue
            if self._suits(storage, weight):
                self.any_halved = True
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
        if self._may_pair:
            yield Storage.ROUNDED_PAIRED if self._input_bits <= 16 else Storage.PAIRED
        if self._input_bits <= 16:
            yield Storage.DOTTED
        yield from (Storage.BFLOAT16, Storage.FLOAT16)

    def _suits(self, storage: Storage, weight: torch.Tensor) -> bool:
        if storage is Storage.INT8:
            return True
        if torch.equal(weight, weight.to(storage.dtype).float()):
            return True
        return storage is Storage.FLOAT16 and self._may_round and HalfLinear.holds(weight)

    def _min_rows(self, in_size: int, rows: StackedRows) -> int | None:
        """Rows that a packed product is padded to; None: its bits are not stable for any."""
        if not self._packs:
            return None
        # Of whole weights and all usual numbers of ranks, so that every one of these agrees.
        key = (in_size, rows.tried)
        if key not in self._verdicts:
            self._verdicts[key] = most_differing_rows(PackedLinear, *key, self.dtype)
        differing = self._verdicts[key]
        return next((rows for rows in MIN_ROWS if rows > differing), None)


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


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and processor have oneDNN's packed product in `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype))(torch.zeros(1, 16, dtype=dtype))
    except RuntimeError:
        return False
    return True


def can_halve_exactly() -> bool:
    """Whether weights that 16 bits hold are multiplied as such, without rounding, and faster."""
    needed = (Storage.FLOAT32, Storage.BFLOAT16, Storage.FLOAT16)
    return all(row_kernels(storage) is not None for storage in needed)


def can_halve() -> bool:
    """Whether this build and processor have products with 16-bit weights."""
    if row_kernels(Storage.BFLOAT16) is not None:
        return True
    try:
        HalfLinear(torch.zeros(16, 16))(torch.zeros(1, 16))
    except RuntimeError:
        return False
    return True


def most_differing_rows(
    kernel: type[PackedLinear],
    in_size: int,
    tried: Sequence[Shares],
    dtype: torch.dtype,
) -> int:
    """The most rows whose bits depend on their number or place; 0 where they never do.

    Tried against a product of many rows by one thread with the whole weights, stacked: other row
    counts, places, this process's threads, and the columns that ranks hold, as in `tried`.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [share.size for share in tried[0]]
    out_size = sum(sizes)
    # A few random rows repeated: drawing all of a large matrix would take longer than probing it.
    few = torch.randn(min(out_size, 509), in_size, generator=generator).to(dtype)
    weight = few.repeat(-(-out_size // few.shape[0]), 1)[:out_size]
    x = torch.randn(2 * max(PROBED_ROWS), in_size, generator=generator).to(dtype)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = kernel(weight)(x)
    finally:
        torch.set_num_threads(num_threads)
    differing = 0
    for shares in tried:
        of_each = list(zip(weight.split(sizes), expected.split(sizes, dim=1), shares, strict=True))
        linear = kernel(torch.cat([part[share.entries] for part, _, share in of_each]))
        columns = torch.cat([out[:, share.entries] for _, out, share in of_each], dim=1)
        differing = max(differing, *_differing_rows(linear, x, columns))
    return differing


def _differing_rows(linear: Linear, x: torch.Tensor, expected: torch.Tensor) -> Iterator[int]:
    """Row counts whose products have other bits than `expected` = linear(x), and a final 0."""
    for rows in PROBED_ROWS:
        for first in (0, 1, len(x) - rows):
            window = slice(first, first + rows)
            if not torch.equal(linear(x[window]), expected[window]):
                yield rows
                break
    yield 0
