# pyright: strict
"""Products of 8 bits by 8 bits in LLVM's language, as text: what `row_code` is for floats.

    rows_<n>(x, weight, y, in, panels, rows, first, end)   panels first to end - 1, n rows a block
    task_<n>(call, me, team)                               a thread's share of all panels

Processors with VNNI multiply four pairs of bytes a lane and add them up in integers, which is four
times as many products a cycle as of float32; with AVX2 alone that takes two multiplications, and is
twice as many. Weights take an eighth more than a byte each. That rounds weights and inputs: fit for
a drafter, whose distribution may be any, and for nobody else.

Both are kept in groups of 64 inputs, each with a scale of its own, so that one large input, as
features of large models have, takes the precision of its group alone. Of a group sums are integers,
hence exact in any order; groups are added up in float32, in order. The instruction wants one side
without a sign: weights are kept 128 larger, and a group's sum starts at what that adds. The sum of
two products that AVX2 makes has 16 bits, which suffice if inputs have seven (`ByteProducts`).

    weight   [panels, groups, 64 / 4, columns, 4] bytes, behind each group [columns] scales
    inputs   [rows, groups, 64] bytes, behind each group its scale and what a sum starts at
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from specserve.backends.cpu.codegen.row_code import (
    ROOM,
    ByteProducts,
    Kernel,
    Machine,
    checked,
    header,
    spread,
    task,
)

GROUP = 64  # inputs
_STEP = 4  # inputs that an instruction multiplies
_OFFSET = 128
_MOST = ByteProducts.QUADS.most_input  # and of weights, always
_SCALE_BYTES = 4
_LEAST = 1e-30  # below which inputs count as zeros: what divides by them is to be a number
_INPUT_BYTES = GROUP + 2 * _SCALE_BYTES  # of a group of a row
WEIGHT_ROWS = GROUP + _SCALE_BYTES  # of a group of a panel, each as many bytes as it has columns
_QUADS = "@llvm.x86.avx512.vpdpbusd.512"
_PAIRS, _QUADS_OF_PAIRS = "@llvm.x86.avx2.pmadd.ub.sw", "@llvm.x86.avx2.pmadd.wd"
_ROUNDED = 16  # inputs at once, which LLVM halves where vectors are shorter
_VECTOR, _INTS = f"<{_ROUNDED} x float>", f"<{_ROUNDED} x i32>"


def code(machine: Machine) -> str:
    """Of all products of a machine that has `byte_products`."""
    assert machine.byte_products is not None
    parts = [header(machine), _DECLARED[machine.byte_products], _round(machine.byte_products)]
    for size in machine.block_sizes:
        parts += [task(size), *_Int8Kernel(machine, size).lines()]
    return "\n".join(parts)


def rounded(x: Tensor, most: float = _MOST) -> tuple[Tensor, Tensor]:
    """x [N, in] -> integers [N, groups, 64] of at most `most`, and their scales [N, groups]."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = groups.abs().amax(-1)
    some = largest >= _LEAST
    steps = torch.where(some, most / largest, 0.0)
    scales = torch.where(some, largest * (1 / most), 0.0)
    return (groups * steps[..., None]).round(), scales


def kept(x: Tensor, most: float = _MOST) -> Tensor:
    """x [N, in], rounded."""
    integers, scales = rounded(x, most)
    return (integers * scales[..., None]).view(x.shape)


def pack(weight: Tensor, panel: Tensor) -> None:
    """weight [columns, in] into panel [in / 64 * WEIGHT_ROWS, columns] uint8."""
    num_columns = len(weight)
    integers, scales = rounded(weight)
    groups = panel.view(-1, WEIGHT_ROWS, num_columns)
    quads = (integers + _OFFSET).to(torch.uint8).view(num_columns, -1, GROUP // _STEP, _STEP)
    groups[:, :GROUP] = quads.permute(1, 2, 0, 3).reshape(-1, GROUP, num_columns)
    groups[:, GROUP:] = scales.T.contiguous().view(torch.uint8).view(-1, _SCALE_BYTES, num_columns)


class _Int8Kernel(Kernel):
    """A call, which is a thread's, rounds all inputs once for all its panels."""

    _end = "call void @free(ptr %inputs)"
    _element = _input = "i8"

    def __init__(self, machine: Machine, size: int) -> None:
        super().__init__(machine, size)
        assert machine.byte_products is not None
        self._products = machine.byte_products
        self._ints = f"<{self._lanes} x i32>"
        self._bytes = f"<{_STEP * self._lanes} x i8>"
        self._begin = f"""
        %groups = udiv i64 %in, {GROUP}
        %num.groups = mul i64 %rows, %groups
        %inputs.bytes = mul i64 %num.groups, {_INPUT_BYTES}
        %inputs = call ptr @malloc(i64 %inputs.bytes)
        {checked(machine.panel)}
        call void @round(ptr %x, i64 %num.groups, ptr %inputs)
        %x.stride = mul i64 %groups, {_INPUT_BYTES}
        %w.stride = mul i64 %groups, {WEIGHT_ROWS * machine.panel}"""
        self._x_stride, self._w_stride = "%x.stride", "%w.stride"

    def _multiply(self) -> Iterator[str]:
        """sum += (sum of integers) * scale of the row * scale of the column, group by group."""
        group_bytes = WEIGHT_ROWS * self._panel
        yield "multiply:"
        yield "%g = phi i64 [0, %block], [%g.next, %add]"
        for r, v in self._sums:
            zero_or_more = f"[zeroinitializer, %block], [%more.{r}.{v}, %add]"
            yield f"%sum.{r}.{v} = phi {self._vector} {zero_or_more}"
        yield f"""
        %w.offset = mul i64 %g, {group_bytes}
        %w.group = getelementptr i8, ptr %w.panel, i64 %w.offset
        %x.offset = mul i64 %g, {_INPUT_BYTES}"""
        for r in self._rows:
            yield f"""
        %x.group.{r} = getelementptr i8, ptr %x.row.{r}, i64 %x.offset
        %scale.at.{r} = getelementptr i8, ptr %x.group.{r}, i64 {GROUP}
        %start.at.{r} = getelementptr i8, ptr %x.group.{r}, i64 {GROUP + _SCALE_BYTES}"""
            yield spread(f"start.{r}", "i32", self._lanes, f"%start.at.{r}")
        yield "br label %step"
        yield from self._steps()
        yield "add:"
        yield f"%w.scales = getelementptr i8, ptr %w.group, i64 {GROUP * self._panel}"
        for v in self._vectors:
            yield f"""
        %w.scale.at.{v} = getelementptr float, ptr %w.scales, i64 {v * self._lanes}
        %w.scale.{v} = load {self._vector}, ptr %w.scale.at.{v}, align 4"""
        for r in self._rows:
            yield spread(f"scale.{r}", "float", self._lanes, f"%scale.at.{r}")
            yield from (self._add(r, v) for v in self._vectors)
        yield """
        %g.next = add i64 %g, 1
        %is.group = icmp ult i64 %g.next, %groups
        br i1 %is.group, label %multiply, label %block.end"""

    def _steps(self) -> Iterator[str]:
        """Four inputs each: whole.<r>.<v> is the sum of a group."""
        yield "step:"
        yield "%k = phi i64 [0, %multiply], [%k.next, %step]"
        for r, v in self._sums:
            more = f"[%start.{r}, %multiply], [%whole.{r}.{v}, %step]"
            yield f"%part.{r}.{v} = phi {self._ints} {more}"
        yield f"%k.offset = mul i64 %k, {self._panel}"
        yield "%w.k = getelementptr i8, ptr %w.group, i64 %k.offset"
        yield from self._fetch(_STEP * self._panel)
        for v in self._vectors:
            yield f"""
        %w.at.{v} = getelementptr i8, ptr %w.k, i64 {v * _STEP * self._lanes}
        %w.{v} = load {self._bytes}, ptr %w.at.{v}, align 4"""
        for r in self._rows:
            yield f"%x.at.{r} = getelementptr i8, ptr %x.group.{r}, i64 %k"
            yield spread(f"x.quad.{r}", "i32", self._lanes, f"%x.at.{r}")
            yield f"%x.{r} = bitcast {self._ints} %x.quad.{r} to {self._bytes}"
            yield from (self._multiplied(r, v) for v in self._vectors)
        yield f"""
        %k.next = add i64 %k, {_STEP}
        %is.more = icmp ult i64 %k.next, {GROUP}
        br i1 %is.more, label %step, label %add"""

    def _multiplied(self, r: int, v: int) -> str:
        """whole = part + w * x."""
        operands = f"{self._bytes} %w.{v}, {self._bytes} %x.{r}"
        if self._products is ByteProducts.QUADS:
            operands = f"{self._ints} %part.{r}.{v}, {operands}"
            return f"%whole.{r}.{v} = call {self._ints} {_QUADS}({operands})"
        shorts = f"<{2 * self._lanes} x i16>"
        by_one = f"{shorts} %pairs.{r}.{v}, {shorts} splat (i16 1)"
        return f"""
        %pairs.{r}.{v} = call {shorts} {_PAIRS}({operands})
        %quads.{r}.{v} = call {self._ints} {_QUADS_OF_PAIRS}({by_one})
        %whole.{r}.{v} = add {self._ints} %part.{r}.{v}, %quads.{r}.{v}"""

    def _add(self, r: int, v: int) -> str:
        # Scales first: a large and a small one make a number, where a sum by the large one may not.
        names = (f"{name}.{r}.{v}" for name in ("float", "both", "sum"))
        of_fma = ", ".join(f"{self._vector} %{name}" for name in names)
        return f"""
        %float.{r}.{v} = sitofp {self._ints} %whole.{r}.{v} to {self._vector}
        %both.{r}.{v} = fmul {self._vector} %scale.{r}, %w.scale.{v}
        %more.{r}.{v} = call {self._vector} @llvm.fma.v{self._lanes}f32({of_fma})"""


def _of_group(most: float) -> Iterator[str]:
    """Round the 64 inputs at %x.g to bytes at %to.g, the scale and the start of sums behind them.

    Of what is no number the scale is none, and so is whatever it is multiplied with.
    """
    parts = range(GROUP // _ROUNDED)
    for i in parts:
        yield f"""
        %x.at.{i} = getelementptr float, ptr %x.g, i64 {i * _ROUNDED}
        %x.{i} = load {_VECTOR}, ptr %x.at.{i}, align 4
        %bits.{i} = bitcast {_VECTOR} %x.{i} to {_INTS}
        %size.{i} = and {_INTS} %bits.{i}, splat (i32 2147483647)"""
    # Of numbers without a sign, the order is that of their bits, and infinity and NaN come last.
    umax = f"call {_INTS} @llvm.umax.v16i32"
    yield f"""
        %size.01 = {umax}({_INTS} %size.0, {_INTS} %size.1)
        %size.23 = {umax}({_INTS} %size.2, {_INTS} %size.3)
        %sizes = {umax}({_INTS} %size.01, {_INTS} %size.23)
        %most.bits = call i32 @llvm.vector.reduce.umax.v16i32({_INTS} %sizes)
        %most = bitcast i32 %most.bits to float
        %is.some = fcmp oge float %most, {_float(_LEAST)}
        %is.number = icmp ult i32 %most.bits, {0x7F800000}
        %is.both = and i1 %is.some, %is.number
        %per.step = fdiv float {_float(most)}, %most
        %steps.one = select i1 %is.both, float %per.step, float 0.0
        %scale.some = fmul float %most, {_float(1 / most)}
        %scale.number = select i1 %is.some, float %scale.some, float 0.0
        %scale = select i1 %is.number, float %scale.number, float 0x7FF8000000000000
        %steps.first = insertelement {_VECTOR} poison, float %steps.one, i32 0
        %steps = shufflevector {_VECTOR} %steps.first, {_VECTOR} poison, {_INTS} zeroinitializer"""
    # Adding 1.5 * 2**23 leaves the nearest integer in the last bits, whatever was added to.
    for i in parts:
        yield f"""
        %exact.{i} = fmul {_VECTOR} %x.{i}, %steps
        %moved.{i} = fadd {_VECTOR} %exact.{i}, splat (float 12582912.0)
        %moved.bits.{i} = bitcast {_VECTOR} %moved.{i} to {_INTS}
        %whole.{i} = sub {_INTS} %moved.bits.{i}, splat (i32 {0x4B400000})
        %byte.{i} = trunc {_INTS} %whole.{i} to <16 x i8>
        %byte.at.{i} = getelementptr i8, ptr %to.g, i64 {i * _ROUNDED}
        store <16 x i8> %byte.{i}, ptr %byte.at.{i}, align 1"""
    yield f"""
        %total.01 = add {_INTS} %whole.0, %whole.1
        %total.23 = add {_INTS} %whole.2, %whole.3
        %totals = add {_INTS} %total.01, %total.23
        %total = call i32 @llvm.vector.reduce.add.v16i32({_INTS} %totals)
        %start = mul i32 %total, {-_OFFSET}
        %scale.at = getelementptr i8, ptr %to.g, i64 {GROUP}
        %start.at = getelementptr i8, ptr %to.g, i64 {GROUP + _SCALE_BYTES}
        store float %scale, ptr %scale.at, align 4
        store i32 %start, ptr %start.at, align 4"""


def _float(value: float) -> str:
    """A float32, as LLVM writes it: the bits of the same number in double precision."""
    single = torch.tensor(value, dtype=torch.float32).double()
    return f"0x{single.view(torch.int64).item():016X}"


_DECLARED = {
    ByteProducts.QUADS: f"declare <16 x i32> {_QUADS}(<16 x i32>, <64 x i8>, <64 x i8>)",
    ByteProducts.PAIRS: f"""
    declare <16 x i16> {_PAIRS}(<32 x i8>, <32 x i8>)
    declare <8 x i32> {_QUADS_OF_PAIRS}(<16 x i16>, <16 x i16>)""",
}


def _round(products: ByteProducts) -> str:
    return f"""
    declare {_INTS} @llvm.umax.v16i32({_INTS}, {_INTS})
    declare i32 @llvm.vector.reduce.umax.v16i32({_INTS})
    declare i32 @llvm.vector.reduce.add.v16i32({_INTS})
    {ROOM}
    define internal void @round(ptr %x, i64 %count, ptr %to) #0 {{
    entry:
        br label %next
    next:
        %g = phi i64 [0, %entry], [%g.next, %next]
        %x.offset = mul i64 %g, {GROUP}
        %to.offset = mul i64 %g, {_INPUT_BYTES}
        %x.g = getelementptr float, ptr %x, i64 %x.offset
        %to.g = getelementptr i8, ptr %to, i64 %to.offset
        {"".join(_of_group(products.most_input))}
        %g.next = add i64 %g, 1
        %is.more = icmp ult i64 %g.next, %count
        br i1 %is.more, label %next, label %done
    done:
        ret void
    }}"""
