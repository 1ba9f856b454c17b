# pyright: strict
"""The products of `row_kernels` in LLVM's language, as text.

    rows_<n>(x, weight, y, in, panels, rows, first, end)   panels first to end - 1, n rows a block
    task_<n>(call, me, team)                               a thread's share of all panels

All sums of a block are values that no loop reads from memory, so they stay in registers; that is
what this is written by hand for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch

_VECTORS = 2  # of a panel
# How far ahead of its use a weight is fetched. Processors' own guesses stop at the end of a page,
# and few rows then wait for memory half of the time.
AHEAD_BYTES = 8192
LINE_BYTES = 64


class Storage(Enum):
    """How a weight is kept; what it is multiplied as is float32 in any case."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    PAIRED = "bfloat16, paired"  # for `tile_code`

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self]


_DTYPES = {
    Storage.FLOAT32: torch.float32,
    Storage.BFLOAT16: torch.bfloat16,
    Storage.FLOAT16: torch.float16,
    Storage.PAIRED: torch.bfloat16,
}


@dataclass(frozen=True)
class Machine:
    """What vectors there are, and whether there is a matrix unit besides."""

    lanes: int  # floats of a vector
    most_rows: int  # of a block: each has one register a vector of the panel
    has_halves: bool
    has_tiles: bool = False

    @property
    def panel(self) -> int:
        """Columns."""
        return _VECTORS * self.lanes

    @property
    def block_sizes(self) -> range:
        return range(1, self.most_rows + 1)


def code(machine: Machine, storage: Storage) -> str:
    """Of all products with weights of one storage that is not paired."""
    vector = f"<{machine.lanes} x float>"
    # LLVM halves vectors of 512 bits where they once lowered the clock, and registers run out.
    bits = 32 * machine.lanes
    parts = [
        f"""
        %call = type {{ ptr, ptr, ptr, ptr, i64, i64, i64 }}
        declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
        declare {vector} @llvm.fma.v{machine.lanes}f32({vector}, {vector}, {vector})
        attributes #0 = {{ "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}
        """
    ]
    for size in machine.block_sizes:
        parts += [task(str(size)), *_Kernel(machine, storage, size).lines()]
    return "\n".join(parts)


def task(name: str) -> str:
    """The share of a thread in a product by `rows_<name>`."""
    fields = ["ptr %x", "ptr %weight", "ptr %y", "i64 %in", "i64 %panels", "i64 %rows"]
    loads = ""
    for place, field in enumerate(fields, 1):
        kind, value = field.split()
        loads += f"""
        {value}.p = getelementptr %call, ptr %call, i32 0, i32 {place}
        {value} = load {kind}, ptr {value}.p"""
    return f"""
    define void @task_{name}(ptr %call, i64 %me, i64 %team) {{{loads}
        %next = add i64 %me, 1
        %first.n = mul i64 %panels, %me
        %end.n = mul i64 %panels, %next
        %first = udiv i64 %first.n, %team
        %end = udiv i64 %end.n, %team
        call void @rows_{name}({", ".join(fields)}, i64 %first, i64 %end)
        ret void
    }}"""


class _Kernel:
    """One `rows_<size>`."""

    def __init__(self, machine: Machine, storage: Storage, size: int) -> None:
        self._lanes, self._panel = machine.lanes, machine.panel
        self._storage = storage
        self._element = _ELEMENTS[storage]
        self._vector = f"<{machine.lanes} x float>"
        self._rows = range(size)
        self._sums = [(row, v) for row in self._rows for v in range(_VECTORS)]

    def lines(self) -> Iterator[str]:
        """Panels, in them blocks of rows, in them all of k."""
        size, panel = len(self._rows), self._panel
        yield f"""
    define void @rows_{size}(ptr noalias %x, ptr noalias %weight, ptr noalias %y,
                             i64 %in, i64 %panels, i64 %rows, i64 %first, i64 %end) #0 {{
    entry:
        %width = mul i64 %panels, {panel}
        %last = sub i64 %rows, {size}
        %any = icmp ult i64 %first, %end
        br i1 %any, label %panel, label %done
    panel:
        %p = phi i64 [%first, %entry], [%p.next, %panel.end]
        %p.start = mul i64 %p, %in
        %p.offset = mul i64 %p.start, {panel}
        %w.panel = getelementptr {self._element}, ptr %weight, i64 %p.offset
        %column = mul i64 %p, {panel}
        br label %block
    block:
        %row.wanted = phi i64 [0, %panel], [%row.next, %block.end]
        %fits = icmp ult i64 %row.wanted, %last
        %row = select i1 %fits, i64 %row.wanted, i64 %last"""
        for r in self._rows:
            yield f"""
        %row.{r} = add i64 %row, {r}
        %x.start.{r} = mul i64 %row.{r}, %in
        %x.row.{r} = getelementptr float, ptr %x, i64 %x.start.{r}"""
        yield "br label %multiply"
        yield from self._multiply()
        yield "block.end:"
        yield from self._store()
        yield f"""
        %row.next = add i64 %row.wanted, {size}
        %is.row = icmp ult i64 %row.next, %rows
        br i1 %is.row, label %block, label %panel.end
    panel.end:
        %p.next = add i64 %p, 1
        %is.panel = icmp ult i64 %p.next, %end
        br i1 %is.panel, label %panel, label %done
    done:
        ret void
    }}"""

    def _multiply(self) -> Iterator[str]:
        """sum += x[rows, k] * w[k, panel], for all k."""
        vector, lanes = self._vector, self._lanes
        yield "multiply:"
        yield "%k = phi i64 [0, %block], [%k.next, %multiply]"
        for r, v in self._sums:
            zero_or_more = f"[zeroinitializer, %block], [%more.{r}.{v}, %multiply]"
            yield f"%sum.{r}.{v} = phi {vector} {zero_or_more}"
        yield f"%k.offset = mul i64 %k, {self._panel}"
        yield f"%w.k = getelementptr {self._element}, ptr %w.panel, i64 %k.offset"
        yield from self._fetch()
        yield from _LOADED[self._storage](lanes)
        to_all = f"<{lanes} x i32> zeroinitializer"
        for r in self._rows:
            yield f"""
        %x.at.{r} = getelementptr float, ptr %x.row.{r}, i64 %k
        %x.one.{r} = load float, ptr %x.at.{r}
        %x.1.{r} = insertelement {vector} poison, float %x.one.{r}, i32 0
        %x.{r} = shufflevector {vector} %x.1.{r}, {vector} poison, {to_all}"""
        for r, v in self._sums:
            operands = f"{vector} %x.{r}, {vector} %w.{v}, {vector} %sum.{r}.{v}"
            yield f"%more.{r}.{v} = call {vector} @llvm.fma.v{lanes}f32({operands})"
        yield "%k.next = add i64 %k, 1"
        yield "%is.more = icmp ult i64 %k.next, %in"
        yield "br i1 %is.more, label %multiply, label %block.end"

    def _fetch(self) -> Iterator[str]:
        """Ask for what a later k reads; what lies behind the last panel is only asked for."""
        size = self._storage.dtype.itemsize
        for at in range(0, self._panel * size, LINE_BYTES):
            yield f"%ahead.{at} = getelementptr i8, ptr %w.k, i64 {AHEAD_BYTES + at}"
            yield f"call void @llvm.prefetch.p0(ptr %ahead.{at}, i32 0, i32 3, i32 1)"

    def _store(self) -> Iterator[str]:
        """y[rows, panel] = sum."""
        for r in self._rows:
            yield f"%y.start.{r} = mul i64 %row.{r}, %width"
            yield f"%y.offset.{r} = add i64 %y.start.{r}, %column"
        for r, v in self._sums:
            yield f"""
        %y.place.{r}.{v} = add i64 %y.offset.{r}, {v * self._lanes}
        %y.at.{r}.{v} = getelementptr float, ptr %y, i64 %y.place.{r}.{v}
        store {self._vector} %more.{r}.{v}, ptr %y.at.{r}.{v}, align 4"""


_ELEMENTS = {Storage.FLOAT32: "float", Storage.BFLOAT16: "i16", Storage.FLOAT16: "half"}

# The vectors of a panel's row k, as float32.


def _float32(lanes: int) -> Iterator[str]:
    for v in range(_VECTORS):
        yield f"""
        %w.at.{v} = getelementptr float, ptr %w.k, i64 {v * lanes}
        %w.{v} = load <{lanes} x float>, ptr %w.at.{v}, align 4"""


def _float16(lanes: int) -> Iterator[str]:
    for v in range(_VECTORS):
        yield f"""
        %w.at.{v} = getelementptr half, ptr %w.k, i64 {v * lanes}
        %w.stored.{v} = load <{lanes} x half>, ptr %w.at.{v}, align 2
        %w.{v} = fpext <{lanes} x half> %w.stored.{v} to <{lanes} x float>"""


def _bfloat16(lanes: int) -> Iterator[str]:
    """Laced, see `RowKernels.pack`: bfloat16 is the upper half of a float32, so one shift and one
    mask make both vectors, where widening would take the units that multiply."""
    yield f"""
        %w.laced = load <{lanes} x i32>, ptr %w.k, align 4
        %w.bits.0 = shl <{lanes} x i32> %w.laced, splat (i32 16)
        %w.bits.1 = and <{lanes} x i32> %w.laced, splat (i32 -65536)
        %w.0 = bitcast <{lanes} x i32> %w.bits.0 to <{lanes} x float>
        %w.1 = bitcast <{lanes} x i32> %w.bits.1 to <{lanes} x float>"""


_LOADED = {
    Storage.FLOAT32: _float32,
    Storage.FLOAT16: _float16,
    Storage.BFLOAT16: _bfloat16,
}
