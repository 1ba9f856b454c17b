"""Machine code for products of few or many rows with a packed weight, made by LLVM at start.

A weight is packed into *panels* of a few vectors of columns, [panels, in, panel]. A product keeps a
block of rows of one panel in registers while it reads the panel once:

    for panel:  for block of rows:  for k in 0 .. in - 1:  y[row, panel] += x[row, k] * w[k, panel]

So few rows cost what the panels take to read from memory, many what they take to multiply. Every
element of y is one chain of fused multiply-adds in the order of k, whatever the block, the width of
vectors, the number of threads or the machine: its bits depend on its row of x and its column of w
alone. Rows that no full block is left for are computed twice, in two overlapping blocks.

Products that round their inputs (`Storage.DOTTED`), for drafters and for targets in bfloat16, or
weights as well (`Storage.INT8`), for drafters, are such chains too, but of what is rounded.

See docs/decisions/0014-row-kernels.md, 0018-drafts-round-inputs.md and 0021-drafters-in-8-bits.md.
"""

import ctypes
import functools
import logging

import torch
from torch import Tensor

from specserve.backends.cpu.codegen import int8_code
from specserve.backends.cpu.codegen.row_code import DOTTED_STEP, Machine, Storage, code
from specserve.backends.cpu.large_pages import Arena
from specserve.backends.cpu.machine_code import Functions, Team, host_machine

_LOG = logging.getLogger(__name__)
_WEIGHTS = Arena()
_ARGUMENTS = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 5


class RowKernels:
    """The compiled products with weights of one storage."""

    def __init__(self, machine: Machine, storage: Storage, team: Team) -> None:
        """Compiles them all, in about a tenth of a second."""
        self.panel = machine.panel
        self.storage = storage
        self._machine = machine
        self._team = team
        self._code = Functions(_code(machine, storage))
        prototype = ctypes.CFUNCTYPE(None, *_ARGUMENTS)
        sizes = machine.block_sizes
        self._addresses = [self._code.address(f"rows_{size}") for size in sizes]
        self._functions = [prototype(address) for address in self._addresses]
        self._tasks = [self._code.address(f"task_{size}") for size in sizes]

    @property
    def trial_size(self) -> int:
        """Inputs that leave a remainder wherever there may be one."""
        return 5 * _STEPS[self.storage] if self.storage in _STEPS else 67

    def multiplied(self, x: Tensor) -> Tensor:
        """x [N, in] as it is multiplied, for some storages rounded."""
        if self.storage is Storage.DOTTED:
            return x.bfloat16().float()
        if self.storage is Storage.INT8:
            assert self._machine.byte_products is not None
            return int8_code.kept(x, self._machine.byte_products.most_input)
        return x

    @property
    def addresses(self) -> list[int]:
        """Of the functions for blocks of 1, 2, ... rows, see `row_code`."""
        return self._addresses

    def pack(self, weight: Tensor) -> Tensor:
        """weight [out, in] float32 -> [panels, kept, panel]; columns that fill up are zeros.

        `kept` is as many as there are inputs, but for `int8_code`, which keeps scales besides.
        Raises `ValueError` for one that `takes` does not take.
        """
        out_size, in_size = weight.shape
        if not self.takes(weight):
            raise ValueError(f"a weight of {list(weight.shape)} has no products")
        num_panels = -(-out_size // self.panel)
        num_kept = in_size
        if self.storage is Storage.INT8:
            num_kept = in_size // int8_code.GROUP * int8_code.WEIGHT_ROWS
        packed = _WEIGHTS.zeros((num_panels, num_kept, self.panel), self.storage.dtype)
        # Panel by panel: a copy of all of a large weight would be as much memory again.
        for panel, part in zip(packed, weight.split(self.panel), strict=True):
            if self.storage is Storage.INT8:
                missing = self.panel - len(part)
                int8_code.pack(torch.nn.functional.pad(part, (0, 0, 0, missing)), panel)
                continue
            panel[:, : len(part)] = part.T
            if self.storage in _ORDERS:
                panel.copy_(_ORDERS[self.storage](panel))
        return packed

    def num_inputs(self, packed: Tensor) -> int:
        """Of a `pack`ed weight."""
        num_kept = packed.shape[1]
        if self.storage is Storage.INT8:
            return num_kept // int8_code.WEIGHT_ROWS * int8_code.GROUP
        return num_kept

    def takes(self, weight: Tensor) -> bool:
        """Whether a weight of this shape has products."""
        step = _STEPS.get(self.storage, 1)
        return weight.numel() > 0 and not weight.shape[1] % step

    def product(self, x: Tensor, packed: Tensor) -> Tensor:
        """x [N, in] float32, `pack`ed weight -> [N, panels * panel].

        Raises `ValueError` for another x, which would be read as if it were that, and for one whose
        gradient is wanted: there is none.
        """
        num_inputs = self.num_inputs(packed)
        if x.dtype != torch.float32 or not x.is_cpu or x.shape[1] != num_inputs:
            raise ValueError(
                f"x is {list(x.shape)} {x.dtype} on {x.device}, and the weight takes "
                f"[N, {num_inputs}] torch.float32 on cpu"
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
        num_blocks = -(-num_rows // self._machine.most_rows)
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
    if storage is Storage.DOTTED and not machine.has_dots:
        return None
    if storage is Storage.INT8 and machine.byte_products is None:
        return None
    try:
        kernels = RowKernels(machine, storage, team)
    except RuntimeError as error:  # LLVM's
        _LOG.warning("matrix products are not compiled: %s", error)
        return None
    if not _is_right(kernels):
        _LOG.warning("compiled matrix products are wrong on this machine, not used")
        return None
    return kernels


def _laced(panel: Tensor) -> Tensor:
    """[in, 2 * lanes] -> the same, columns c and lanes + c side by side, see `row_code`."""
    return panel.view(len(panel), 2, -1).transpose(1, 2).reshape(panel.shape)


def _dotted(panel: Tensor) -> Tensor:
    """[in, columns] -> the same, of a column two inputs side by side, see `row_code`."""
    return panel.view(len(panel) // 2, 2, -1).transpose(1, 2).reshape(panel.shape)


_ORDERS = {Storage.BFLOAT16: _laced, Storage.DOTTED: _dotted}
_STEPS = {Storage.DOTTED: DOTTED_STEP, Storage.INT8: int8_code.GROUP}  # of inputs


def _code(machine: Machine, storage: Storage) -> str:
    return int8_code.code(machine) if storage is Storage.INT8 else code(machine, storage)


def _is_right(kernels: RowKernels) -> bool:
    """Against sums in double precision; and the same bits alone as among rows of any number."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*range(1, 41), 64, 129, 150]
    out_size = 3 * kernels.panel + 5
    weight = torch.randn(out_size, kernels.trial_size, generator=generator).bfloat16().float() / 8
    x = torch.randn(max(sizes), kernels.trial_size, generator=generator)
    packed = kernels.pack(weight)
    alone = torch.cat([kernels.product(row[None], packed) for row in x])
    # bfloat16 holds the weight.
    kept = int8_code.kept(weight) if kernels.storage is Storage.INT8 else weight
    expected = kernels.multiplied(x).double() @ kept.double().T
    is_close = torch.allclose(alone[:, :out_size].double(), expected, atol=1e-4, rtol=0)
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
