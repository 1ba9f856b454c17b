# pyright: strict
"""The products of `row_kernels` in LLVM's language, as text.

    rows_<n>(x, weight, y, in, panels, rows, first, end)   panels first to end - 1, n rows a block
    task_<n>(call, me, team)                               a thread's share of all panels

All sums of a block are values that no loop reads from memory, so they stay in registers; that is
what this is written by hand for.

Processors that add up pairs of products of bfloat16 do twice as many of them. That takes inputs in
bfloat16, too, which rounds them (`Storage.DOTTED`): fit for a drafter, whose distribution may be
any, and for a target that is to be served in bfloat16. Of bytes they do twice as many again:
`int8_code`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch

_VECTORS = 2  # of a panel
# How far ahead of its use a weight is fetched. Processors' own guesses stop at the end of a page,
# and few rows then wait for memory half of the time.
AHEAD_BYTES = 8192
_LINE_BYTES = 64


class Storage(Enum):
    """How a weight is kept. It is multiplied as float32, and so are inputs, but for the last two:
    inputs rounded; and both rounded to 8 bits."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    DOTTED = "bfloat16, inputs rounded to it"
    INT8 = "8 bits, inputs as well"  # for `int8_code`

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self]


_DTYPES = {
    Storage.FLOAT32: torch.float32,
    Storage.BFLOAT16: torch.bfloat16,
    Storage.FLOAT16: torch.float16,
    Storage.DOTTED: torch.bfloat16,
    Storage.INT8: torch.uint8,
}


class ByteProducts(Enum):
    """How many products of bytes an instruction adds up; the value is the largest input."""

    QUADS = 127  # four, in 32 bits
    PAIRS = 64  # two, in 16 bits, which hold 2 * 64 * 255 but not 2 * 65 * 255

    @property
    def most_input(self) -> float:
        return float(self.value)


@dataclass(frozen=True)
class Machine:
    """What vectors there are, and dot products: of pairs of bfloat16, and of bytes."""

    lanes: int  # floats of a vector
    most_rows: int  # of a block: each has one register a vector of the panel
    has_halves: bool
    has_dots: bool = False
    byte_products: ByteProducts | None = None

    @property
    def panel(self) -> int:
        """Columns."""
        return _VECTORS * self.lanes

    @property
    def block_sizes(self) -> range:
        return range(1, self.most_rows + 1)


def code(machine: Machine, storage: Storage) -> str:
    """Of all products with weights of one storage that no other module has code for."""
    is_dotted = storage is Storage.DOTTED
    kernel = _DottedKernel if is_dotted else _FloatKernel
    parts = [header(machine), _ROUND if is_dotted else ""]
    for size in machine.block_sizes:
        parts += [task(size), *kernel(machine, storage, size).lines()]
    return "\n".join(parts)


def header(machine: Machine) -> str:
    """What all products of vectors begin with."""
    vector = f"<{machine.lanes} x float>"
    # LLVM halves vectors of 512 bits where they once lowered the clock, and registers run out.
    bits = 32 * machine.lanes
    return f"""
        %call = type {{ ptr, ptr, ptr, ptr, i64, i64, i64 }}
        declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
        declare {vector} @llvm.fma.v{machine.lanes}f32({vector}, {vector}, {vector})
        attributes #0 = {{ "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}" }}
        """


def task(size: int) -> str:
    """The share of a thread in a product by `rows_<size>`."""
    fields = ["ptr %x", "ptr %weight", "ptr %y", "i64 %in", "i64 %panels", "i64 %rows"]
    loads = ""
    for place, field in enumerate(fields, 1):
        kind, value = field.split()
        loads += f"""
        {value}.p = getelementptr %call, ptr %call, i32 0, i32 {place}
        {value} = load {kind}, ptr {value}.p"""
    return f"""
    define void @task_{size}(ptr %call, i64 %me, i64 %team) {{{loads}
        %next = add i64 %me, 1
        %first.n = mul i64 %panels, %me
        %end.n = mul i64 %panels, %next
        %first = udiv i64 %first.n, %team
        %end = udiv i64 %end.n, %team
        call void @rows_{size}({", ".join(fields)}, i64 %first, i64 %end)
        ret void
    }}"""


def checked(panel: int) -> str:
    """Where %inputs got no memory, results that are no numbers, which nobody samples from."""
    return f"""
        %is.room = icmp ne ptr %inputs, null
        br i1 %is.room, label %is.there, label %is.none
    is.none:
        %lost.panels = sub i64 %end, %first
        %lost.floats = mul i64 %lost.panels, {panel}
        %lost.first = mul i64 %first, {panel}
        %lost.width = mul i64 %panels, {panel}
        %lost.bytes = mul i64 %lost.floats, 4
        br label %lose
    lose:
        %lost.row = phi i64 [0, %is.none], [%lost.next, %lose]
        %lost.start = mul i64 %lost.row, %lost.width
        %lost.offset = add i64 %lost.start, %lost.first
        %lost = getelementptr float, ptr %y, i64 %lost.offset
        call void @llvm.memset.p0.i64(ptr %lost, i8 -1, i64 %lost.bytes, i1 false)
        %lost.next = add i64 %lost.row, 1
        %is.lost = icmp ult i64 %lost.next, %rows
        br i1 %is.lost, label %lose, label %done
    is.there:"""


class Kernel:
    """One `rows_<size>`: what is around the sums of a block."""

    _begin, _end = "%inputs = getelementptr i8, ptr %x, i64 0", ""
    _element: str  # of weights, ...
    _input: str  # ... and inputs, so many of which a row takes:
    _x_stride = "%in"
    _w_stride = "%w.floats"  # the same of a panel

    def __init__(self, machine: Machine, size: int) -> None:
        self._lanes, self._panel = machine.lanes, machine.panel
        self._vector = f"<{machine.lanes} x float>"
        self._rows, self._vectors = range(size), range(_VECTORS)
        self._sums = [(row, v) for row in self._rows for v in self._vectors]

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
        br i1 %any, label %begin, label %done
    begin:
        %w.floats = mul i64 %in, {panel}
        {self._begin}
        br label %start
    start:
        br label %panel
    panel:
        %p = phi i64 [%first, %start], [%p.next, %panel.end]
        %p.offset = mul i64 %p, {self._w_stride}
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
        %x.start.{r} = mul i64 %row.{r}, {self._x_stride}
        %x.row.{r} = getelementptr {self._input}, ptr %inputs, i64 %x.start.{r}"""
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
        br i1 %is.panel, label %panel, label %finish
    finish:
        {self._end}
        br label %done
    done:
        ret void
    }}"""

    def _multiply(self) -> Iterator[str]:
        """From label `multiply` to label `block.end`: values %more.<row>.<vector>."""
        raise NotImplementedError

    def _fetch(self, num_bytes: int) -> Iterator[str]:
        """Ask for what a later k reads; what lies behind the last panel is only asked for."""
        for at in range(0, num_bytes, _LINE_BYTES):
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


class _FloatKernel(Kernel):
    """Weights are widened, inputs are as they are."""

    _inputs_of_step = 1

    def __init__(self, machine: Machine, storage: Storage, size: int) -> None:
        super().__init__(machine, size)
        self._storage = storage
        self._element = _ELEMENTS[storage]
        self._input = "float"

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
        yield from self._fetch(self._panel * self._storage.dtype.itemsize * self._inputs_of_step)
        yield from _LOADED[self._storage](lanes)
        for r in self._rows:
            yield from self._spread(r)
            yield from (self._add(r, v) for v in self._vectors)
        yield f"%k.next = add i64 %k, {self._inputs_of_step}"
        yield "%is.more = icmp ult i64 %k.next, %in"
        yield "br i1 %is.more, label %multiply, label %block.end"

    def _spread(self, r: int) -> Iterator[str]:
        """%x.r: the input of a row in all lanes."""
        yield f"%x.at.{r} = getelementptr float, ptr %x.row.{r}, i64 %k"
        yield spread(f"x.{r}", "float", self._lanes, f"%x.at.{r}")

    def _add(self, r: int, v: int) -> str:
        operands = ", ".join(f"{self._vector} %{n}" for n in (f"x.{r}", f"w.{v}", f"sum.{r}.{v}"))
        return f"%more.{r}.{v} = call {self._vector} @llvm.fma.v{self._lanes}f32({operands})"


class _DottedKernel(_FloatKernel):
    """Two inputs a step. A call, which is a thread's, rounds all inputs once for all its panels."""

    _inputs_of_step = 2
    _end = "call void @free(ptr %inputs)"

    def __init__(self, machine: Machine, storage: Storage, size: int) -> None:
        super().__init__(machine, storage, size)
        self._input = "bfloat"
        self._begin = f"""
        %num.inputs = mul i64 %rows, %in
        %inputs.bytes = mul i64 %num.inputs, 2
        %inputs = call ptr @malloc(i64 %inputs.bytes)
        {checked(machine.panel)}
        call void @round(ptr %x, i64 %num.inputs, ptr %inputs)"""

    def _spread(self, r: int) -> Iterator[str]:
        yield f"%x.at.{r} = getelementptr bfloat, ptr %x.row.{r}, i64 %k"
        yield spread(f"x.pair.{r}", "i32", self._lanes, f"%x.at.{r}")
        yield f"%x.{r} = bitcast <{self._lanes} x i32> %x.pair.{r} to {_PAIRS}"

    def _add(self, r: int, v: int) -> str:
        operands = f"{self._vector} %sum.{r}.{v}, {_PAIRS} %x.{r}, {_PAIRS} %w.{v}"
        return f"%more.{r}.{v} = call {self._vector} {_DOT}({operands})"


ROOM = """declare ptr @malloc(i64)
    declare void @free(ptr)
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""
DOTTED_STEP = 16  # inputs are rounded by so many
_PAIRS, _DOT = "<32 x bfloat>", "@llvm.x86.avx512bf16.dpbf16ps.512"
_ROUND = f"""
    declare <16 x float> {_DOT}(<16 x float>, {_PAIRS}, {_PAIRS})
    {ROOM}
    define internal void @round(ptr %x, i64 %count, ptr %to) #0 {{
    entry:
        br label %next
    next:
        %i = phi i64 [0, %entry], [%i.next, %next]
        %x.i = getelementptr float, ptr %x, i64 %i
        %to.i = getelementptr bfloat, ptr %to, i64 %i
        %whole = load <{DOTTED_STEP} x float>, ptr %x.i, align 4
        %rounded = fptrunc <{DOTTED_STEP} x float> %whole to <{DOTTED_STEP} x bfloat>
        store <{DOTTED_STEP} x bfloat> %rounded, ptr %to.i, align 2
        %i.next = add i64 %i, {DOTTED_STEP}
        %is.more = icmp ult i64 %i.next, %count
        br i1 %is.more, label %next, label %done
    done:
        ret void
    }}"""


def spread(name: str, element: str, lanes: int, place: str) -> str:
    """A vector of what lies at a place."""
    vector, to_all = f"<{lanes} x {element}>", f"<{lanes} x i32> zeroinitializer"
    return f"""
        %{name}.one = load {element}, ptr {place}, align 4
        %{name}.first = insertelement {vector} poison, {element} %{name}.one, i32 0
        %{name} = shufflevector {vector} %{name}.first, {vector} poison, {to_all}"""


_ELEMENTS = {
    Storage.FLOAT32: "float",
    Storage.BFLOAT16: "i16",
    Storage.FLOAT16: "half",
    Storage.DOTTED: "bfloat",
}

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


def _pairs(lanes: int) -> Iterator[str]:
    """Of row k and the next, side by side, see `RowKernels.pack`."""
    for v in range(_VECTORS):
        yield f"""
        %w.at.{v} = getelementptr bfloat, ptr %w.k, i64 {2 * v * lanes}
        %w.{v} = load {_PAIRS}, ptr %w.at.{v}, align 2"""


_LOADED = {
    Storage.FLOAT32: _float32,
    Storage.FLOAT16: _float16,
    Storage.BFLOAT16: _bfloat16,
    Storage.DOTTED: _pairs,
}
