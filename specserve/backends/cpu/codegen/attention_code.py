# pyright: strict
"""Attention over a paged cache in LLVM's language, as text: what all time of it is spent in.

    score_<n>(queries, keys, pages, tiles, tiles a page, page stride, scores, stride)
    weigh_<n>(weights, stride, values, pages, seen, page size, page stride, out)
    keep_key(key, place)
    keep_value(value, place)

n rows, each a query head of one token of a row of the cache, whose pages are read as they lie
there: keys in tiles [D, keys of a tile], values [keys, D], of float32 or bfloat16. Strides are in
numbers; that of pages leads from one key head's page 0 to its page 1. What is kept is rounded to
the nearest, of two equally near to the even one.

`score` fills whole tiles; between it and `weigh`, which reads the first `seen` positions only, is
`softmax_code`. As in `row_code`, the sums of a block are values that no loop reads from memory,
each is one chain of fused multiply-adds in the order of dimensions or positions, and no row knows
of another. Nothing depends on the machine's vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specserve.backends.cpu.codegen.row_code import AHEAD_BYTES
from specserve.backends.cpu.codegen.softmax_code import LANES, soften_code

_NAN = 0x7FC0  # in bfloat16


@dataclass(frozen=True)
class Shape:
    """What a model and its cache divide into."""

    head_dim: int  # D
    tile: int  # keys
    columns: int  # of values that are one vector: divides D
    most_rows: int  # of a block, and sums of one that are vectors in registers
    num_bytes: int  # of a number that is kept: 4 of float32, 2 of bfloat16

    @property
    def kept(self) -> str:
        """LLVM's type of it."""
        return "float" if self.num_bytes == 4 else "i16"

    @property
    def ahead(self) -> int:
        """Numbers between what is read and what is asked for.

        The next page alone is there too late, where pages do not follow each other in memory; in a
        service that has run for a while none do.
        """
        return AHEAD_BYTES // self.num_bytes

    def tiles_at_once(self, size: int) -> int:
        """So many that their chains of sums overlap."""
        return self.most_rows // size

    def columns_at_once(self, size: int) -> int:
        """Vectors of them, likewise."""
        vectors = self.head_dim // self.columns
        most = max(1, self.most_rows // size)
        return max(n for n in range(1, most + 1) if vectors % n == 0)


def code(shape: Shape) -> str:
    """Of all blocks of rows."""
    parts = [
        f"""
        declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
        declare <{LANES} x float> @llvm.floor.v{LANES}f32(<{LANES} x float>)
        attributes #0 = {{
            "min-legal-vector-width"="{32 * LANES}" "prefer-vector-width"="{32 * LANES}"
        }}"""
    ]
    for lanes in sorted({shape.tile, shape.columns, LANES}):
        vector = f"<{lanes} x float>"
        parts.append(f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})")
    parts += soften_code()
    parts += _keep(shape, "keep_key", 1, shape.tile)  # among the keys of its tile
    parts += _keep(shape, "keep_value", shape.columns, 1)
    for size in range(1, shape.most_rows + 1):
        parts += [*_score(shape, size), *_weigh(shape, size)]
    return "\n".join(parts)


# --- products ------------------------------------------------------------------------------------


def _score(shape: Shape, size: int) -> Iterator[str]:
    """Groups of tiles, and in them all dimensions. Beyond the last tile it is done once more."""
    tile, dim, tiles = shape.tile, shape.head_dim, range(shape.tiles_at_once(size))
    sums = _Sums(tile, size, len(tiles))
    ahead = max(len(tiles), -(-shape.ahead // (tile * dim)))
    yield f"""
    define void @score_{size}(ptr noalias %x, ptr noalias %keys, ptr noalias %pages,
                              i64 %tiles, i64 %tiles.page, i64 %page.stride,
                              ptr noalias %y, i64 %stride) #0 {{
    entry:
        %last = sub i64 %tiles, 1
        br label %group
    group:
        %t = phi i64 [0, %entry], [%t.next, %group.end]"""
    for v in tiles:
        yield from _tile(shape, v, v)
        yield from _tile(shape, f"ahead.{v}", v + ahead)
    yield "br label %multiply"
    yield "multiply:"
    yield "%k = phi i64 [0, %group], [%k.next, %multiply]"
    yield from sums.entered("multiply", [("group", "zeroinitializer"), ("multiply", "%more.{}")])
    yield f"%w.offset = mul i64 %k, {tile}"
    for v in tiles:
        yield f"%w.at.{v} = getelementptr {shape.kept}, ptr %w.start.{v}, i64 %w.offset"
        yield from _read(shape, tile, f"w.{v}", f"%w.at.{v}")
        yield from _fetched(shape, f"%w.start.ahead.{v}", "%w.offset", f"ahead.{v}")
    for r in range(size):
        yield f"%x.place.{r} = add i64 %k, {r * dim}"
        yield f"%x.at.{r} = getelementptr float, ptr %x, i64 %x.place.{r}"
    yield from sums.added()
    yield f"""
        %k.next = add i64 %k, 1
        %is.more = icmp ult i64 %k.next, {dim}
        br i1 %is.more, label %multiply, label %group.end
    group.end:"""
    for v in tiles:
        yield f"%y.column.{v} = mul i64 %t.{v}, {tile}"
    for r in range(size):
        yield f"%y.start.{r} = mul i64 %stride, {r}"
    for r, v in sums.places:
        yield f"%y.place.{r}.{v} = add i64 %y.start.{r}, %y.column.{v}"
    yield from sums.stored()
    yield f"""
        %t.next = add i64 %t, {len(tiles)}
        %is.group = icmp ult i64 %t.next, %tiles
        br i1 %is.group, label %group, label %done
    done:
        ret void
    }}"""


def _tile(shape: Shape, name: object, number: int) -> Iterator[str]:
    """Which one is so many from the first of a group, and where it starts."""
    yield f"""
        %t.wanted.{name} = add i64 %t, {number}
        %is.there.{name} = icmp ult i64 %t.wanted.{name}, %last
        %t.{name} = select i1 %is.there.{name}, i64 %t.wanted.{name}, i64 %last
        %place.{name} = udiv i64 %t.{name}, %tiles.page
        %part.{name} = urem i64 %t.{name}, %tiles.page
        %page.at.{name} = getelementptr i64, ptr %pages, i64 %place.{name}
        %page.{name} = load i64, ptr %page.at.{name}
        %page.start.{name} = mul i64 %page.{name}, %page.stride
        %part.start.{name} = mul i64 %part.{name}, {shape.tile * shape.head_dim}
        %tile.start.{name} = add i64 %page.start.{name}, %part.start.{name}
        %w.start.{name} = getelementptr {shape.kept}, ptr %keys, i64 %tile.start.{name}"""


def _read(shape: Shape, lanes: int, name: str, at: str) -> Iterator[str]:
    """A vector of what is kept. bfloat16 is the upper half of a float32."""
    if shape.kept == "float":
        yield f"%{name} = load <{lanes} x float>, ptr {at}, align 4"
        return
    yield f"""
        %{name}.kept = load <{lanes} x i16>, ptr {at}, align 2
        %{name}.wide = zext <{lanes} x i16> %{name}.kept to <{lanes} x i32>
        %{name}.bits = shl <{lanes} x i32> %{name}.wide, splat (i32 16)
        %{name} = bitcast <{lanes} x i32> %{name}.bits to <{lanes} x float>"""


def _fetched(shape: Shape, start: str, offset: str, name: str) -> Iterator[str]:
    """Ask for what is read soon: pages are wherever they are, which no processor guesses."""
    yield f"%fetched.{name} = getelementptr {shape.kept}, ptr {start}, i64 {offset}"
    yield f"call void @llvm.prefetch.p0(ptr %fetched.{name}, i32 0, i32 3, i32 1)"


def _weigh(shape: Shape, size: int) -> Iterator[str]:
    """Groups of columns, in them pages, in them all positions."""
    dim, at_once = shape.head_dim, shape.columns_at_once(size)
    sums = _Sums(shape.columns, size, at_once)
    yield f"""
    define void @weigh_{size}(ptr noalias %x, i64 %stride, ptr noalias %values,
                              ptr noalias %pages, i64 %seen, i64 %page.size, i64 %page.stride,
                              ptr noalias %y) #0 {{
    entry:
        %page.numbers = mul i64 %page.size, {dim}
        %up = add i64 %page.numbers, {shape.ahead - 1}
        %ahead = udiv i64 %up, %page.numbers
        %seen.before = sub i64 %seen, 1
        %last.page = udiv i64 %seen.before, %page.size"""
    for r in range(size):
        yield f"%x.start.{r} = mul i64 %stride, {r}"
        yield f"%x.row.{r} = getelementptr float, ptr %x, i64 %x.start.{r}"
    yield f"""
        br label %group
    group:
        %column = phi i64 [0, %entry], [%column.next, %group.end]
        %w.columns = getelementptr {shape.kept}, ptr %values, i64 %column
        br label %page
    page:
        %p = phi i64 [0, %group], [%p.next, %page.end]
        %first = phi i64 [0, %group], [%first.next, %page.end]"""
    yield from _page(shape, sums)
    yield """
        %k.next = add i64 %k, 1
        %is.more = icmp ult i64 %k.next, %count
        br i1 %is.more, label %multiply, label %page.end
    page.end:
        %p.next = add i64 %p, 1
        %first.next = add i64 %first, %count
        %is.page = icmp ult i64 %first.next, %seen
        br i1 %is.page, label %page, label %group.end
    group.end:"""
    for r, v in sums.places:
        yield f"%y.place.{r}.{v} = add i64 %column, {r * dim + v * shape.columns}"
    yield from sums.stored()
    yield f"""
        %column.next = add i64 %column, {at_once * shape.columns}
        %is.group = icmp ult i64 %column.next, {dim}
        br i1 %is.group, label %group, label %done
    done:
        ret void
    }}"""


def _page(shape: Shape, sums: "_Sums") -> Iterator[str]:
    """The positions of one page that are seen, and a later page asked for."""
    dim, kept = shape.head_dim, shape.kept
    yield from sums.entered("page", [("group", "zeroinitializer"), ("page.end", "%more.{}")])
    yield f"""
        %page.at = getelementptr i64, ptr %pages, i64 %p
        %page.id = load i64, ptr %page.at
        %page.offset = mul i64 %page.id, %page.stride
        %w.page = getelementptr {kept}, ptr %w.columns, i64 %page.offset
        %p.ahead.wanted = add i64 %p, %ahead
        %is.there = icmp ult i64 %p.ahead.wanted, %last.page
        %p.ahead = select i1 %is.there, i64 %p.ahead.wanted, i64 %last.page
        %ahead.at = getelementptr i64, ptr %pages, i64 %p.ahead
        %ahead.id = load i64, ptr %ahead.at
        %ahead.offset = mul i64 %ahead.id, %page.stride
        %w.ahead = getelementptr {kept}, ptr %w.columns, i64 %ahead.offset
        %left = sub i64 %seen, %first
        %is.whole = icmp ult i64 %page.size, %left
        %count = select i1 %is.whole, i64 %page.size, i64 %left
        br label %multiply
    multiply:
        %k = phi i64 [0, %page], [%k.next, %multiply]"""
    yield from sums.entered("multiply", [("page", "%page.{}"), ("multiply", "%more.{}")])
    yield f"%w.offset = mul i64 %k, {dim}"
    yield f"%w.key = getelementptr {kept}, ptr %w.page, i64 %w.offset"
    for v in range(sums.num_vectors):
        yield f"%w.at.{v} = getelementptr {kept}, ptr %w.key, i64 {v * shape.columns}"
        yield from _read(shape, shape.columns, f"w.{v}", f"%w.at.{v}")
        yield f"%offset.{v} = add i64 %w.offset, {v * shape.columns}"
        yield from _fetched(shape, "%w.ahead", f"%offset.{v}", f"{v}")
    yield "%x.key = add i64 %first, %k"
    for r in range(sums.num_rows):
        yield f"%x.at.{r} = getelementptr float, ptr %x.row.{r}, i64 %x.key"
    yield from sums.added()


class _Sums:
    """x[rows] * w[vectors], in registers."""

    def __init__(self, lanes: int, num_rows: int, num_vectors: int) -> None:
        self.vector = f"<{lanes} x float>"
        self.places = [(r, v) for r in range(num_rows) for v in range(num_vectors)]
        self.num_rows, self.num_vectors = num_rows, num_vectors
        self._lanes = lanes

    def entered(self, block: str, sources: list[tuple[str, str]]) -> Iterator[str]:
        """What they are at the start of a block, by where it is entered from."""
        prefix = "page" if block == "page" else "sum"
        for r, v in self.places:
            values = ", ".join(f"[{value.format(f'{r}.{v}')}, %{of}]" for of, value in sources)
            yield f"%{prefix}.{r}.{v} = phi {self.vector} {values}"

    def added(self) -> Iterator[str]:
        """more = sum + x * w."""
        vector, lanes = self.vector, self._lanes
        to_all = f"<{lanes} x i32> zeroinitializer"
        for r in range(self.num_rows):
            yield f"""
        %x.one.{r} = load float, ptr %x.at.{r}
        %x.1.{r} = insertelement {vector} poison, float %x.one.{r}, i32 0
        %x.{r} = shufflevector {vector} %x.1.{r}, {vector} poison, {to_all}"""
        for r, v in self.places:
            operands = f"{vector} %x.{r}, {vector} %w.{v}, {vector} %sum.{r}.{v}"
            yield f"%more.{r}.{v} = call {vector} @llvm.fma.v{lanes}f32({operands})"

    def stored(self) -> Iterator[str]:
        """y[place] = more."""
        for r, v in self.places:
            yield f"""
        %y.at.{r}.{v} = getelementptr float, ptr %y, i64 %y.place.{r}.{v}
        store {self.vector} %more.{r}.{v}, ptr %y.at.{r}.{v}, align 4"""


# --- what is kept --------------------------------------------------------------------------------


def _keep(shape: Shape, name: str, lanes: int, stride: int) -> Iterator[str]:
    """One [D], so many numbers at a time; `stride` leads from each to the next where it is kept."""
    yield f"""
    define void @{name}(ptr noalias %x, ptr noalias %y) #0 {{
    entry:
        br label %keep
    keep:
        %k = phi i64 [0, %entry], [%k.next, %keep]
        %x.at = getelementptr float, ptr %x, i64 %k
        %x.some = load <{lanes} x float>, ptr %x.at, align 4
        %y.place = mul i64 %k, {stride}
        %y.at = getelementptr {shape.kept}, ptr %y, i64 %y.place"""
    yield from _kept(shape, lanes, "%x.some", "%y.at")
    yield f"""
        %k.next = add i64 %k, {lanes}
        %is.more = icmp ult i64 %k.next, {shape.head_dim}
        br i1 %is.more, label %keep, label %done
    done:
        ret void
    }}"""


def _kept(shape: Shape, lanes: int, x: str, at: str) -> Iterator[str]:
    """Store a vector. By integers, because what processors have for it drops denormals."""
    floats, wide, narrow = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i16"))
    if shape.kept == "float":
        yield f"store {floats} {x}, ptr {at}, align 4"
        return
    yield f"""
        %bits = bitcast {floats} {x} to {wide}
        %upper = lshr {wide} %bits, splat (i32 16)
        %odd = and {wide} %upper, splat (i32 1)
        %less.than.half = add {wide} %odd, splat (i32 32767)
        %up = add {wide} %bits, %less.than.half
        %rounded = lshr {wide} %up, splat (i32 16)
        %is.nan = fcmp uno {floats} {x}, {x}
        %found = select <{lanes} x i1> %is.nan, {wide} splat (i32 {_NAN}), {wide} %rounded
        %kept = trunc {wide} %found to {narrow}
        store {narrow} %kept, ptr {at}, align 2"""
