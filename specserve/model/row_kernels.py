"""Machine code for products of few or many rows with a packed weight, made by LLVM at start.

A weight is packed into *panels* of a few vectors of columns, [panels, in, panel]. A product keeps a
block of rows of one panel in registers while it reads the panel once:

    for panel:  for block of rows:  for k in 0 .. in - 1:  y[row, panel] += x[row, k] * w[k, panel]

So few rows cost what the panels take to read from memory, many what they take to multiply. Every
element of y is one chain of fused multiply-adds in the order of k, whatever the block, the width of
vectors, the number of threads or the machine: its bits depend on its row of x and its column of w
alone. Rows that no full block is left for are computed twice, in two overlapping blocks.

See docs/decisions/0014-row-kernels.md.
"""

import ctypes
import functools
import logging

import torch
from torch import Tensor

from specserve.model.machine_code import Functions, Team, host_machine
from specserve.model.row_code import Machine, Storage, code

_LOG = logging.getLogger(__name__)
_ARGUMENTS = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 5


class RowKernels:
    """The compiled products with weights of one storage."""

    def __init__(self, machine: Machine, storage: Storage, team: Team) -> None:
        """Compiles them all, in about a tenth of a second."""
        self.panel = machine.panel
        self._storage = storage
        self._most_rows = machine.most_rows
        self._team = team
        self._code = Functions(code(machine, storage))
        sizes = machine.block_sizes
        prototype = ctypes.CFUNCTYPE(None, *_ARGUMENTS)
        self._addresses = [self._code.address(f"rows_{size}") for size in sizes]
        self._functions = [prototype(address) for address in self._addresses]
        self._tasks = [self._code.address(f"task_{size}") for size in sizes]

    @property
    def addresses(self) -> list[int]:
        """Of the functions for blocks of 1, 2, ... rows, see `row_code`."""
        return self._addresses

    def pack(self, weight: Tensor) -> Tensor:
        """weight [out, in] float32 -> [panels, in, panel]; columns that fill up are zeros."""
        out_size, in_size = weight.shape
        if not weight.numel():
            raise ValueError(f"a weight of {list(weight.shape)} has no products")
        num_panels = -(-out_size // self.panel)
        packed = torch.zeros(num_panels, in_size, self.panel, dtype=self._storage.value)
        # Panel by panel: a copy of all of a large weight would be as much memory again.
        for panel, part in zip(packed, weight.split(self.panel), strict=True):
            panel[:, : len(part)] = part.T
        return packed

    def product(self, x: Tensor, packed: Tensor) -> Tensor:
        """x [N, in] float32, `pack`ed weight -> [N, panels * panel].

        Raises `ValueError` for another x, which would be read as if it were that, and for one whose
        gradient is wanted: there is none.
        """
        if x.dtype != torch.float32 or not x.is_cpu or x.shape[1] != packed.shape[1]:
            raise ValueError(
                f"x is {list(x.shape)} {x.dtype} on {x.device}, and the weight takes "
                f"[N, {packed.shape[1]}] torch.float32 on cpu"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError("compiled products have no gradients")
        # A profile has what torch dispatches and what says its name.
        if torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
            with torch.profiler.record_function("specserve::row_product"):
                return self._product(x, packed)
        return self._product(x, packed)

    def _product(self, x: Tensor, packed: Tensor) -> Tensor:
        x = x.contiguous()
        num_rows, in_size = x.shape
        num_panels = packed.shape[0]
        y = torch.empty(num_rows, num_panels * self.panel)
        if not num_rows:
            return y
        num_blocks = -(-num_rows // self._most_rows)
        place = -(-num_rows // num_blocks) - 1  # blocks of equal size
        pointers = x.data_ptr(), packed.data_ptr(), y.data_ptr()
        num_threads = torch.get_num_threads()
        if num_threads == 1:
            self._functions[place](*pointers, in_size, num_panels, num_rows, 0, num_panels)
        else:
            call = _Call(self._tasks[place], *pointers, in_size, num_panels, num_rows)
            self._team.run(ctypes.addressof(call), num_threads)
        return y


@functools.cache
def row_kernels(storage: Storage) -> RowKernels | None:
    """None where this machine or installation has none, or they compute something else."""
    machine = host_machine()
    team = None if machine is None else Team.of_torch()
    if machine is None or team is None:
        return None
    if storage is Storage.FLOAT16 and not machine.has_halves:
        return None
    try:
        kernels = RowKernels(machine, storage, team)
    except RuntimeError as error:  # LLVM's
        _LOG.warning("matrix products are not compiled: %s", error)
        return None
    if not _is_right(kernels, machine.most_rows):
        _LOG.warning("compiled matrix products are wrong on this machine, not used")
        return None
    return kernels


def _is_right(kernels: RowKernels, most_rows: int) -> bool:
    """Against sums in double precision; and the same bits alone as in blocks of any size."""
    generator = torch.Generator().manual_seed(0)
    in_size, out_size, num_rows = 67, 3 * kernels.panel + 5, 3 * most_rows + 1
    x = torch.randn(num_rows, in_size, generator=generator)
    weight = torch.randn(out_size, in_size, generator=generator).bfloat16().float()
    packed = kernels.pack(weight)
    expected = x.double() @ packed.double().transpose(1, 2).reshape(-1, in_size).T
    alone = torch.cat([kernels.product(row[None], packed) for row in x])
    is_close = torch.allclose(alone.double(), expected, atol=1e-4, rtol=0)
    sizes = range(1, num_rows + 1)
    return is_close and all(torch.equal(kernels.product(x[:n], packed), alone[:n]) for n in sizes)


class _Call(ctypes.Structure):
    """What a thread needs to know; the layout is `%call` of `row_code`."""

    _fields_ = [
        ("task", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("in_size", ctypes.c_int64),
        ("num_panels", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
    ]
