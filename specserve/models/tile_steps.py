# pyright: strict
"""What the matrix unit does with tiles of a part of the inputs, which `tile_code` loops over.

@configure(rows)             of tiles from now on
@cut(x, in, part, rows, pieces)
@panels_1, @panels_2         one tile of rows by so many panels
@pair                        two tiles of rows by one panel
"""

from collections.abc import Iterator

from specserve.backends.cpu.codegen.row_code import AHEAD_BYTES, LINE_BYTES

STEP = 32  # inputs of a tile
COLUMNS = 16  # of a tile
PANEL = 2 * COLUMNS
ROWS = 16  # of a tile at most
TILE_LINE = 64
_TILE_BYTES = 1024
_TILE_LINES = _TILE_BYTES // LINE_BYTES
SHARES = 3  # of a step's weights: each is about what memory can bring in a step's time
_SHARE_LINES = -(-2 * _TILE_LINES // SHARES)
# Eight registers: sums of two panels, one tile of weights, up to three pieces of a tile of rows.
_WEIGHTS, _PIECES, _NUM_TILES = 4, 5, 8


def step_code(num_pieces: int) -> Iterator[str]:
    """`num_pieces`: of an input; one means that inputs are rounded."""
    yield """
        declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
        declare void @llvm.x86.ldtilecfg(ptr)
        declare void @llvm.x86.tilezero(i8)
        declare void @llvm.x86.tileloadd64(i8, ptr, i64)
        declare void @llvm.x86.tilestored64(i8, ptr, i64)
        declare void @llvm.x86.tdpbf16ps(i8, i8, i8)"""
    yield from _cut(num_pieces)
    yield from _panels(1, num_pieces)
    yield from _panels(2, num_pieces)
    yield from _pair(num_pieces)
    yield _configure()


def step_bytes(num_pieces: int) -> int:
    """Of the pieces of a tile of rows, a step."""
    return num_pieces * _TILE_BYTES


def _cut(num_pieces: int) -> Iterator[str]:
    """Rows [in] of x, `part` inputs -> for each step and piece a tile [rows, 32] of bfloat16."""
    yield f"""
    define internal void @cut(ptr %x, i64 %in, i64 %part, i64 %height, ptr %pieces) #0 {{
    entry:
        br label %row
    row:
        %r = phi i64 [0, %entry], [%r.next, %row.end]
        %x.start = mul i64 %r, %in
        %x.row = getelementptr float, ptr %x, i64 %x.start
        %line = mul i64 %r, {TILE_LINE}
        %to.row = getelementptr i8, ptr %pieces, i64 %line
        br label %step
    step:
        %k = phi i64 [0, %row], [%k.next, %step]
        %x.k = getelementptr float, ptr %x.row, i64 %k
        %to.offset = mul i64 %k, {step_bytes(num_pieces) // STEP}
        %to.k = getelementptr i8, ptr %to.row, i64 %to.offset"""
    for half in range(2):
        yield f"""
        %x.{half} = getelementptr float, ptr %x.k, i64 {COLUMNS * half}
        %rest.{half}.0 = load <16 x float>, ptr %x.{half}, align 4
        %to.{half} = getelementptr i8, ptr %to.k, i64 {half * COLUMNS * 2}"""
        yield from _pieces(half, num_pieces) if num_pieces > 1 else _rounded(half)
    yield f"""
        %k.next = add i64 %k, {STEP}
        %is.step = icmp ult i64 %k.next, %part
        br i1 %is.step, label %step, label %row.end
    row.end:
        %r.next = add i64 %r, 1
        %is.row = icmp ult i64 %r.next, %height
        br i1 %is.row, label %row, label %done
    done:
        ret void
    }}"""


def _pieces(half: int, num_pieces: int) -> Iterator[str]:
    """That make inputs up.

    What a float32 has before its 17th bit is a bfloat16, and what it is more than that is exact; so
    is what that is more than its own first bits, which has no more than eight.
    """
    for piece in range(num_pieces):
        at = f"{half}.{piece}"
        yield f"""
        %bits.{at} = bitcast <16 x float> %rest.{at} to <16 x i32>
        %upper.{at} = lshr <16 x i32> %bits.{at}, splat (i32 16)
        %piece.{at} = trunc <16 x i32> %upper.{at} to <16 x i16>
        %to.{at} = getelementptr i8, ptr %to.{half}, i64 {piece * _TILE_BYTES}
        store <16 x i16> %piece.{at}, ptr %to.{at}, align 32
        %whole.{at} = and <16 x i32> %bits.{at}, splat (i32 -65536)
        %float.{at} = bitcast <16 x i32> %whole.{at} to <16 x float>
        %rest.{half}.{piece + 1} = fsub <16 x float> %rest.{at}, %float.{at}"""


def _rounded(half: int) -> Iterator[str]:
    yield f"""
        %rounded.{half} = fptrunc <16 x float> %rest.{half}.0 to <16 x bfloat>
        store <16 x bfloat> %rounded.{half}, ptr %to.{half}, align 32"""


def _panels(count: int, num_pieces: int) -> Iterator[str]:
    """y[tile of rows, `count` panels] += sums over a part of the inputs, = over the first.

    One panel comes from memory as it is read, and what follows it is asked for. Two are read by
    some tiles of rows; of the two that follow each of a chunk's first three tiles asks for its
    %share, so that memory has work while the unit has.
    """
    sums = range(2 * count)  # of half a panel each
    yield f"""
    define internal void @panels_{count}(ptr %pieces, ptr %weight, ptr %y, i64 %part,
                                         i64 %panel.bytes, i64 %line, i1 %is.first,
                                         i64 %share) #0 {{
        %share.bytes = mul i64 %share, {_SHARE_LINES * LINE_BYTES}
        %next = mul i64 %panel.bytes, {count}
        %ask = add i64 %next, %share.bytes"""
    for place in sums:
        yield f"%y.{place} = getelementptr float, ptr %y, i64 {COLUMNS * place}"
    yield from _entered(len(sums))
    yield f"""
        %w.offset.0 = mul i64 %k, {2 * PANEL}
        %w.offset.1 = add i64 %w.offset.0, %panel.bytes
        %p.offset = mul i64 %k, {step_bytes(num_pieces) // STEP}
        %p.0 = getelementptr i8, ptr %pieces, i64 %p.offset"""
    yield from _pieces_loaded("%p.0", num_pieces)
    for panel in range(count):
        yield f"%w.{panel} = getelementptr i8, ptr %weight, i64 %w.offset.{panel}"
    for place in sums:
        panel, half = divmod(place, 2)
        yield from _weights_loaded(place, f"%w.{panel}", half)
        if count == 1:
            yield from _asked_for(place, str(AHEAD_BYTES))
        elif half == 0:
            yield from _asked_for(place, "%ask", _SHARE_LINES)
        yield from _added(place, num_pieces)
    yield from _left(len(sums))


def _pair(num_pieces: int) -> Iterator[str]:
    """y[two tiles of rows, a panel] += sums over a part of the inputs, = over the first.

    %next.pieces and %next.y lead to those of the second tile. Both tiles load their sums before
    either stores them, so rows that both have are not added to twice.
    """
    places = [(tile, half) for tile in range(2) for half in range(2)]
    yield """
    define internal void @pair(ptr %pieces, i64 %next.pieces, ptr %weight, ptr %y, i64 %next.y,
                               i64 %part, i64 %ahead, i64 %line, i1 %is.first) #0 {"""
    for place, (tile, half) in enumerate(places):
        yield f"""
        %y.tile.{place} = mul i64 %next.y, {tile}
        %y.offset.{place} = add i64 %y.tile.{place}, {COLUMNS * half}
        %y.{place} = getelementptr float, ptr %y, i64 %y.offset.{place}"""
    yield from _entered(len(places))
    yield f"""
        %w.offset = mul i64 %k, {2 * PANEL}
        %w.k = getelementptr i8, ptr %weight, i64 %w.offset
        %p.offset.0 = mul i64 %k, {step_bytes(num_pieces) // STEP}
        %p.offset.1 = add i64 %p.offset.0, %next.pieces"""
    for place, (tile, half) in enumerate(places):
        if half == 0:
            yield f"%p.{tile} = getelementptr i8, ptr %pieces, i64 %p.offset.{tile}"
            yield from _pieces_loaded(f"%p.{tile}", num_pieces)
        yield from _weights_loaded(place, "%w.k", half)
        if tile == 0:  # the second one has the same weights
            yield from _asked_for(place, "%ahead")
        yield from _added(place, num_pieces)
    yield from _left(len(places))


def _entered(num_sums: int) -> Iterator[str]:
    """Sums from zero or from %y.0, %y.1, ..., and then steps from %k = 0 on."""
    yield "br i1 %is.first, label %none, label %some"
    yield "none:"
    for place in range(num_sums):
        yield f"call void @llvm.x86.tilezero(i8 {place})"
    yield "br label %start"
    yield "some:"
    for place in range(num_sums):
        yield f"call void @llvm.x86.tileloadd64(i8 {place}, ptr %y.{place}, i64 %line)"
    yield """
        br label %start
    start:
        br label %step
    step:
        %k = phi i64 [0, %start], [%k.next, %step]"""


def _left(num_sums: int) -> Iterator[str]:
    """The next step, or sums are kept."""
    yield f"""
        %k.next = add i64 %k, {STEP}
        %is.step = icmp ult i64 %k.next, %part
        br i1 %is.step, label %step, label %done
    done:"""
    for place in range(num_sums):
        yield f"call void @llvm.x86.tilestored64(i8 {place}, ptr %y.{place}, i64 %line)"
    yield "ret void }"


def _pieces_loaded(start: str, num_pieces: int) -> Iterator[str]:
    """Those of a tile of rows."""
    for piece in range(num_pieces):
        yield f"""
        {start}.{piece} = getelementptr i8, ptr {start}, i64 {piece * _TILE_BYTES}
        call void @llvm.x86.tileloadd64(i8 {_PIECES + piece}, ptr {start}.{piece},
                                        i64 {TILE_LINE})"""


def _weights_loaded(place: int, panel: str, half: int) -> Iterator[str]:
    """A step's of one half of a panel."""
    yield f"""
        %b.{place} = getelementptr i8, ptr {panel}, i64 {half * _TILE_BYTES}
        call void @llvm.x86.tileloadd64(i8 {_WEIGHTS}, ptr %b.{place}, i64 {TILE_LINE})"""


def _asked_for(place: int, ahead: str, num_lines: int = _TILE_LINES) -> Iterator[str]:
    """What is so many bytes ahead of these weights."""
    yield f"%ahead.{place} = getelementptr i8, ptr %b.{place}, i64 {ahead}"
    for at in range(0, num_lines * LINE_BYTES, LINE_BYTES):
        yield f"""
        %ahead.{place}.{at} = getelementptr i8, ptr %ahead.{place}, i64 {at}
        call void @llvm.prefetch.p0(ptr %ahead.{place}.{at}, i32 0, i32 2, i32 1)"""


def _added(place: int, num_pieces: int) -> Iterator[str]:
    """To a sum the products of these weights and each piece."""
    for piece in range(num_pieces):
        operands = f"i8 {place}, i8 {_PIECES + piece}, i8 {_WEIGHTS}"
        yield f"call void @llvm.x86.tdpbf16ps({operands})"


def _configure() -> str:
    """Tiles of so many rows, but for those of weights; all lines are whole."""
    fields = "\n".join(
        f"""
        %columns.{tile} = getelementptr i8, ptr %config, i64 {16 + 2 * tile}
        store i16 {TILE_LINE}, ptr %columns.{tile}
        %rows.{tile} = getelementptr i8, ptr %config, i64 {48 + tile}
        store i8 {ROWS if tile == _WEIGHTS else "%rows"}, ptr %rows.{tile}"""
        for tile in range(_NUM_TILES)
    )
    return f"""
    define internal void @configure(i64 %height) #0 {{
        %rows = trunc i64 %height to i8
        %config = alloca [64 x i8], align 64
        store [64 x i8] zeroinitializer, ptr %config
        store i8 1, ptr %config
        {fields}
        call void @llvm.x86.ldtilecfg(ptr %config)
        ret void
    }}"""
