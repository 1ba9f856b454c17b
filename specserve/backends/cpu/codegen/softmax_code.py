# pyright: strict
"""Softmax in LLVM's language, as text: what attention does between its two products.

    soften(scores, seen, padded, total)

makes exp(score - largest) of the first `seen` scores and zeros of the others up to `padded`, whole
vectors, and sums them. A total is 16 interleaved sums, folded in halves: nothing depends on the
machine's vectors.
"""

import struct
from collections.abc import Callable, Iterator

LANES = 16  # floats of the widest vector here; LLVM splits it where the machine's are narrower
_VECTOR, _INTEGERS, _BITS = (f"<{LANES} x {kind}>" for kind in ("float", "i32", "i1"))
_LOG2_E, _LEAST_EXPONENT, _MOST_EXPONENT = 1.44269504, -126.0, 127.0
# 2**part for parts from -.5 to .5, highest power first.
_SERIES = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)


def soften_code() -> Iterator[str]:
    """The largest of all, and then their powers and the sum of these."""
    yield f"""
    define void @soften(ptr noalias %scores, i64 %seen, i64 %padded, ptr noalias %total) #0 {{
    entry:
        br label %compare
    compare:
        %key = phi i64 [0, %entry], [%key.next, %compare]
        %most = phi {_VECTOR} [{_splat(float("-inf"))}, %entry], [%most.next, %compare]"""
    yield from _loaded("key", "score")
    yield f"""
        %is.larger = fcmp ogt {_VECTOR} %score, %most
        %is.most = and {_BITS} %is.larger, %score.is.seen
        %most.next = select {_BITS} %is.most, {_VECTOR} %score, {_VECTOR} %most
        %key.next = add i64 %key, {LANES}
        %is.more = icmp ult i64 %key.next, %padded
        br i1 %is.more, label %compare, label %compared
    compared:"""
    yield from _folded("most.next", "largest", _larger)
    yield f"""
        br label %soften
    soften:
        %place = phi i64 [0, %compared], [%place.next, %soften]
        %sum = phi {_VECTOR} [zeroinitializer, %compared], [%sum.next, %soften]"""
    yield from _loaded("place", "value")
    yield f"%gap = fsub {_VECTOR} %value, %largest"
    yield from _exp("gap", "power")
    yield f"""
        %weight = select {_BITS} %value.is.seen, {_VECTOR} %power, {_VECTOR} zeroinitializer
        store {_VECTOR} %weight, ptr %value.at, align 4
        %sum.next = fadd {_VECTOR} %sum, %weight
        %place.next = add i64 %place, {LANES}
        %is.again = icmp ult i64 %place.next, %padded
        br i1 %is.again, label %soften, label %softened
    softened:"""
    yield from _folded("sum.next", "all", _sum)
    yield f"""
        %one = extractelement {_VECTOR} %all, i32 0
        store float %one, ptr %total
        ret void
    }}"""


def _loaded(start: str, name: str) -> Iterator[str]:
    """A vector of scores from `start` on, where it lies, and which of them are seen."""
    numbers = ", ".join(f"i32 {lane}" for lane in range(LANES))
    yield f"""
        %{name}.at = getelementptr float, ptr %scores, i64 %{start}
        %{name} = load {_VECTOR}, ptr %{name}.at, align 4
        %{name}.left.wide = sub i64 %seen, %{start}
        %{name}.left = trunc i64 %{name}.left.wide to i32
        %{name}.one = insertelement {_INTEGERS} poison, i32 %{name}.left, i32 0
        %{name}.all = shufflevector {_INTEGERS} %{name}.one, {_INTEGERS} poison,
                                    {_INTEGERS} zeroinitializer
        %{name}.is.seen = icmp slt {_INTEGERS} <{numbers}>, %{name}.all"""


def _exp(x: str, name: str) -> Iterator[str]:
    """e**x to the last few bits, from 1e-38 to 2e38; NaN stays NaN."""
    vector, integers, bits = _VECTOR, _INTEGERS, _BITS

    def fma(*operands: str) -> str:
        listed = ", ".join(f"{vector} {operand}" for operand in operands)
        return f"call {vector} @llvm.fma.v{LANES}f32({listed})"

    yield f"""
        %scaled = fmul {vector} %{x}, {_splat(_LOG2_E)}
        %is.low = fcmp olt {vector} %scaled, {_splat(_LEAST_EXPONENT)}
        %raised = select {bits} %is.low, {vector} {_splat(_LEAST_EXPONENT)}, {vector} %scaled
        %is.high = fcmp ogt {vector} %raised, {_splat(_MOST_EXPONENT)}
        %kept = select {bits} %is.high, {vector} {_splat(_MOST_EXPONENT)}, {vector} %raised
        %shifted = fadd {vector} %kept, {_splat(0.5)}
        %whole = call {vector} @llvm.floor.v{LANES}f32({vector} %shifted)
        %part = fsub {vector} %kept, %whole
        %series.0 = fadd {vector} {_splat(_SERIES[0])}, zeroinitializer"""
    for place, factor in enumerate(_SERIES[1:], 1):
        yield f"%series.{place} = {fma(f'%series.{place - 1}', '%part', _splat(factor))}"
    yield f"""
        %exponent = fptosi {vector} %whole to {integers}
        %known = freeze {integers} %exponent
        %biased = add {integers} %known, splat (i32 127)
        %placed = shl {integers} %biased, splat (i32 23)
        %scale = bitcast {integers} %placed to {vector}
        %{name} = fmul {vector} %series.{len(_SERIES) - 1}, %scale"""


def _folded(name: str, result: str, combine: Callable[[str, str, str], str]) -> Iterator[str]:
    """All lanes of `result` = those of `name` combined, in halves."""
    width, last = LANES // 2, name
    while width:
        order = ", ".join(f"i32 {lane ^ width}" for lane in range(LANES))
        other, found = f"{result}.other.{width}", result if width == 1 else f"{result}.{width}"
        yield (
            f"%{other} = shufflevector {_VECTOR} %{last}, {_VECTOR} poison, "
            f"<{LANES} x i32> <{order}>"
        )
        yield combine(found, last, other)
        width, last = width // 2, found


def _sum(name: str, one: str, other: str) -> str:
    return f"%{name} = fadd {_VECTOR} %{one}, %{other}"


def _larger(name: str, one: str, other: str) -> str:
    return f"""
        %{name}.is = fcmp ogt {_VECTOR} %{one}, %{other}
        %{name} = select {_BITS} %{name}.is, {_VECTOR} %{one}, {_VECTOR} %{other}"""


def _splat(number: float) -> str:
    """A vector of the float32 nearest to it; LLVM wants a double's bits."""
    rounded = struct.unpack("f", struct.pack("f", number))[0]
    bits = struct.unpack("Q", struct.pack("d", rounded))[0]
    return f"splat (float 0x{bits:016X})"
