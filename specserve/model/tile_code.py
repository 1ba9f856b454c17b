# pyright: strict
"""Products by a matrix unit, AMX, in LLVM's language, as text: what `row_code` is for vectors.

    rows_any(x, weight, y, in, panels, rows, first, end)   panels first to end - 1, any rows
    task_any(call, me, team)                               a thread's share of all panels

The unit multiplies 16 rows by 16 columns in bfloat16 and adds up in float32. The weights are stored
in bfloat16; the inputs, which are float32, are cut into three pieces of 8 bits each that make them
up exactly, and each piece is multiplied. So no product is rounded, only sums are, as elsewhere, and
they are one chain each: by 32 inputs a step, in a step by piece. That is as precise as chains of
fused multiply-adds, though not bit by bit the same. Who may round inputs has them rounded to
bfloat16, which is one piece, and a third of the work.

A weight is *paired*: a panel has, for each 32 inputs, a tile for each half of its 32 columns, [16
pairs of inputs, 16 columns, 2]. An input's row is cut once for all panels. Two tiles of rows take a
weight together; more are taken in chunks of tiles. Their inputs are taken in parts, so that what is
cut stays in the inner caches; sums wait in y for the next part.
"""

from collections.abc import Iterator

from specserve.model.row_code import AHEAD_BYTES, LINE_BYTES, checked, task

STEP = 32  # inputs of a tile
COLUMNS = 16  # of a tile
PANEL = 2 * COLUMNS
_ROWS = 16  # of a tile at most
_TILE_BYTES = 1024
_TILE_LINE = 64
_CHUNK = 8  # tiles of rows that are cut at a time, ...
PART = 1024  # ... and inputs
PART_OF_TWO = 128  # of two tiles alone: what is cut of them is half of the innermost cache
# Eight registers: sums of two panels, one tile of weights, up to three pieces of a tile of rows.
_WEIGHTS, _PIECES, _NUM_TILES = 4, 5, 8


def code(*, rounds: bool = False) -> str:
    """`rounds` is whether inputs are, to bfloat16."""
    num_pieces = 1 if rounds else 3
    return "\n".join(
        [
            """
        %call = type { ptr, ptr, ptr, ptr, i64, i64, i64 }
        declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
        declare void @llvm.x86.ldtilecfg(ptr)
        declare void @llvm.x86.tilerelease()
        declare void @llvm.x86.tilezero(i8)
        declare void @llvm.x86.tileloadd64(i8, ptr, i64)
        declare void @llvm.x86.tilestored64(i8, ptr, i64)
        declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
        declare ptr @aligned_alloc(i64, i64)
        declare void @free(ptr)
        declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
        attributes #0 = { "min-legal-vector-width"="512" "prefer-vector-width"="512" }""",
            *_cut(num_pieces),
            *_panels(1, num_pieces),
            *_panels(2, num_pieces),
            *_pair(num_pieces),
            _configure(),
            _cut_all(_step_bytes(num_pieces)),
            _two_tiles(_step_bytes(num_pieces)),
            _rows(_step_bytes(num_pieces)),
            task("any"),
        ]
    )


def _step_bytes(num_pieces: int) -> int:
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
        %line = mul i64 %r, {_TILE_LINE}
        %to.row = getelementptr i8, ptr %pieces, i64 %line
        br label %step
    step:
        %k = phi i64 [0, %row], [%k.next, %step]
        %x.k = getelementptr float, ptr %x.row, i64 %k
        %to.offset = mul i64 %k, {_step_bytes(num_pieces) // STEP}
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
    """y[tile of rows, `count` panels] += sums over a part of the inputs, = over the first."""
    sums = range(2 * count)  # of half a panel each
    yield f"""
    define internal void @panels_{count}(ptr %pieces, ptr %weight, ptr %y, i64 %part,
                                         i64 %panel.bytes, i64 %line, i1 %is.first) #0 {{"""
    for place in sums:
        yield f"%y.{place} = getelementptr float, ptr %y, i64 {COLUMNS * place}"
    yield from _entered(len(sums))
    yield f"""
        %w.offset.0 = mul i64 %k, {2 * PANEL}
        %w.offset.1 = add i64 %w.offset.0, %panel.bytes
        %p.offset = mul i64 %k, {_step_bytes(num_pieces) // STEP}
        %p.0 = getelementptr i8, ptr %pieces, i64 %p.offset"""
    yield from _pieces_loaded("%p.0", num_pieces)
    for panel in range(count):
        yield f"%w.{panel} = getelementptr i8, ptr %weight, i64 %w.offset.{panel}"
    for place in sums:
        panel, half = divmod(place, 2)
        yield from _weights_loaded(place, f"%w.{panel}", half)
        yield from _asked_for(place, str(AHEAD_BYTES))
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
        %p.offset.0 = mul i64 %k, {_step_bytes(num_pieces) // STEP}
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
                                        i64 {_TILE_LINE})"""


def _weights_loaded(place: int, panel: str, half: int) -> Iterator[str]:
    """A step's of one half of a panel."""
    yield f"""
        %b.{place} = getelementptr i8, ptr {panel}, i64 {half * _TILE_BYTES}
        call void @llvm.x86.tileloadd64(i8 {_WEIGHTS}, ptr %b.{place}, i64 {_TILE_LINE})"""


def _asked_for(place: int, ahead: str) -> Iterator[str]:
    """What is so many bytes ahead of these weights."""
    yield f"%ahead.{place} = getelementptr i8, ptr %b.{place}, i64 {ahead}"
    for at in range(0, _TILE_BYTES, LINE_BYTES):
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
        store i16 {_TILE_LINE}, ptr %columns.{tile}
        %rows.{tile} = getelementptr i8, ptr %config, i64 {48 + tile}
        store i8 {_ROWS if tile == _WEIGHTS else "%rows"}, ptr %rows.{tile}"""
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


def _place(tile: str) -> str:
    """%row, where a tile begins, and %height, how many rows it has."""
    return f"""
        %row = mul i64 {tile}, {_ROWS}
        %below = sub i64 %rows, %row
        %is.full = icmp ugt i64 %below, {_ROWS}
        %height = select i1 %is.full, i64 {_ROWS}, i64 %below"""


def _cut_all(step_bytes: int) -> str:
    """`part` inputs of tiles first to end - 1."""
    return f"""
    define internal void @cut_all(ptr %x, i64 %in, i64 %part, i64 %rows, i64 %first, i64 %end,
                                  ptr %room) #0 {{
    entry:
        %tile.bytes = mul i64 %part, {step_bytes // STEP}
        br label %tile
    tile:
        %t = phi i64 [%first, %entry], [%t.next, %tile]
        {_place("%t")}
        %x.offset = mul i64 %row, %in
        %x.tile = getelementptr float, ptr %x, i64 %x.offset
        %n = sub i64 %t, %first
        %offset = mul i64 %n, %tile.bytes
        %pieces = getelementptr i8, ptr %room, i64 %offset
        call void @cut(ptr %x.tile, i64 %in, i64 %part, i64 %height, ptr %pieces)
        %t.next = add i64 %t, 1
        %is.tile = icmp ult i64 %t.next, %end
        br i1 %is.tile, label %tile, label %done
    done:
        ret void
    }}"""


def _two_tiles(step_bytes: int) -> str:
    """17 to 32 rows: parts of the inputs, in them panels, each by both tiles at once.

    Tiles have half of the rows each, the second one overlaps the first if these are odd: the unit
    takes as long for a tile as that has rows, and longer to be configured for another height.
    """
    return f"""
    define internal void @two_tiles(ptr %x, ptr %weight, ptr %y, i64 %in, i64 %panels, i64 %rows,
                                    i64 %first, i64 %end) #0 {{
    entry:
        %room = alloca [{2 * PART_OF_TWO // STEP * step_bytes} x i8], align {_TILE_LINE}
        %room.other = getelementptr i8, ptr %room, i64 {PART_OF_TWO // STEP * step_bytes}
        %rows.up = add i64 %rows, 1
        %height = lshr i64 %rows.up, 1
        call void @configure(i64 %height)
        %second = sub i64 %rows, %height
        %x.start = mul i64 %second, %in
        %x.other = getelementptr float, ptr %x, i64 %x.start
        %width = mul i64 %panels, {PANEL}
        %line = mul i64 %width, 4
        %next.y = mul i64 %second, %width
        %panel.bytes = mul i64 %in, {2 * PANEL}
        br label %part
    part:
        %k = phi i64 [0, %entry], [%k.next, %part.end]
        %is.first = icmp eq i64 %k, 0
        %k.left = sub i64 %in, %k
        %is.last = icmp ult i64 %k.left, {PART_OF_TWO}
        %inputs = select i1 %is.last, i64 %k.left, i64 {PART_OF_TWO}
        %x.k = getelementptr float, ptr %x, i64 %k
        %x.other.k = getelementptr float, ptr %x.other, i64 %k
        call void @cut(ptr %x.k, i64 %in, i64 %inputs, i64 %height, ptr %room)
        call void @cut(ptr %x.other.k, i64 %in, i64 %inputs, i64 %height, ptr %room.other)
        %w.k.offset = mul i64 %k, {2 * PANEL}
        %w.k = getelementptr i8, ptr %weight, i64 %w.k.offset
        br label %panel
    panel:
        %p = phi i64 [%first, %part], [%p.next, %panel]
        %w.offset = mul i64 %p, %panel.bytes
        %w.panel = getelementptr i8, ptr %w.k, i64 %w.offset
        %column = mul i64 %p, {PANEL}
        %y.panel = getelementptr float, ptr %y, i64 %column
        call void @pair(ptr %room, i64 {PART_OF_TWO // STEP * step_bytes}, ptr %w.panel,
                        ptr %y.panel, i64 %next.y, i64 %inputs, i64 %panel.bytes, i64 %line,
                        i1 %is.first)
        %p.next = add i64 %p, 1
        %is.panel = icmp ult i64 %p.next, %end
        br i1 %is.panel, label %panel, label %part.end
    part.end:
        %k.next = add i64 %k, %inputs
        %is.part = icmp ult i64 %k.next, %in
        br i1 %is.part, label %part, label %done
    done:
        call void @llvm.x86.tilerelease()
        ret void
    }}"""


def _part(step_bytes: int) -> str:
    """Where a part of a chunk's inputs is, how many they are, and its pieces."""
    return f"""
    part:
        %k = phi i64 [0, %chunk], [%k.next, %part.end]
        %is.first = icmp eq i64 %k, 0
        %k.left = sub i64 %in, %k
        %is.last = icmp ult i64 %k.left, %most.inputs
        %inputs = select i1 %is.last, i64 %k.left, i64 %most.inputs
        %tile.bytes = mul i64 %inputs, {step_bytes // STEP}
        %x.k = getelementptr float, ptr %x, i64 %k
        call void @cut_all(ptr %x.k, i64 %in, i64 %inputs, i64 %rows,
                           i64 %t.first, i64 %t.end, ptr %room)
        %w.k.offset = mul i64 %k, {2 * PANEL}
        %w.k = getelementptr i8, ptr %weight, i64 %w.k.offset
        br label %panel"""


def _tiles() -> str:
    """A part of the inputs of a chunk's tiles, one tile of rows after another, by %taken panels."""
    return f"""
    tile:
        %t = phi i64 [%t.first, %panel], [%t.next, %tile.end]
        {_place("%t")}
        %n = sub i64 %t, %t.first
        %offset = mul i64 %n, %tile.bytes
        %pieces = getelementptr i8, ptr %room, i64 %offset
        %y.start = mul i64 %row, %width
        %y.offset = add i64 %y.start, %column
        %y.tile = getelementptr float, ptr %y, i64 %y.offset
        %height.before = load i64, ptr %configured
        %is.configured = icmp eq i64 %height, %height.before
        br i1 %is.configured, label %multiply, label %configure
    configure:
        call void @configure(i64 %height)
        store i64 %height, ptr %configured
        br label %multiply
    multiply:
        br i1 %is.pair, label %pair, label %single
    pair:
        call void @panels_2(ptr %pieces, ptr %w.panel, ptr %y.tile, i64 %inputs,
                            i64 %panel.bytes, i64 %line, i1 %is.first)
        br label %tile.end
    single:
        call void @panels_1(ptr %pieces, ptr %w.panel, ptr %y.tile, i64 %inputs,
                            i64 %panel.bytes, i64 %line, i1 %is.first)
        br label %tile.end
    tile.end:
        %t.next = add i64 %t, 1
        %is.tile = icmp ult i64 %t.next, %t.end
        br i1 %is.tile, label %tile, label %panel.end"""


def _sizes(step_bytes: int) -> str:
    """How many tiles there are, how many panels and inputs at a time, and room for the pieces."""
    return f"""
        %rows.up = add i64 %rows, {_ROWS - 1}
        %tiles = udiv i64 %rows.up, {_ROWS}
        store i64 0, ptr %configured
        %is.few = icmp ult i64 %tiles, {_CHUNK}
        %most = select i1 %is.few, i64 %tiles, i64 {_CHUNK}
        %is.one = icmp eq i64 %tiles, 1
        %at.once = select i1 %is.one, i64 1, i64 2
        %is.short = icmp ult i64 %in, {PART}
        %is.uncut = or i1 %is.one, %is.short
        %most.inputs = select i1 %is.uncut, i64 %in, i64 {PART}
        %most.bytes = mul i64 %most.inputs, {step_bytes // STEP}
        %room.bytes = mul i64 %most, %most.bytes
        %room = call ptr @aligned_alloc(i64 {_TILE_LINE}, i64 %room.bytes)
        {checked("%room", PANEL)}
        %width = mul i64 %panels, {PANEL}
        %line = mul i64 %width, 4
        %panel.bytes = mul i64 %in, {2 * PANEL}"""


def _rows(step_bytes: int) -> str:
    """Chunks of tiles of rows, in them parts of the inputs, in them panels, in them the tiles.

    One tile of rows takes panels whole and one by one, as they come from memory. More than two take
    two at a time, so that the unit always has a sum that does not wait for the one before.
    """
    return f"""
    define void @rows_any(ptr noalias %x, ptr noalias %weight, ptr noalias %y,
                          i64 %in, i64 %panels, i64 %rows, i64 %first, i64 %end) #0 {{
    entry:
        %configured = alloca i64
        %any = icmp ult i64 %first, %end
        br i1 %any, label %some, label %done
    some:
        %beyond.one = sub i64 %rows, {_ROWS + 1}
        %are.two = icmp ult i64 %beyond.one, {_ROWS}
        br i1 %are.two, label %two, label %start
    two:
        call void @two_tiles(ptr %x, ptr %weight, ptr %y, i64 %in, i64 %panels, i64 %rows,
                             i64 %first, i64 %end)
        br label %done
    start:
        {_sizes(step_bytes)}
        br label %chunk
    chunk:
        %t.first = phi i64 [0, %is.there], [%t.end, %chunk.end]
        %t.wanted = add i64 %t.first, {_CHUNK}
        %is.whole = icmp ult i64 %t.wanted, %tiles
        %t.end = select i1 %is.whole, i64 %t.wanted, i64 %tiles
        br label %part
    {_part(step_bytes)}
    panel:
        %p = phi i64 [%first, %part], [%p.next, %panel.end]
        %left = sub i64 %end, %p
        %are.enough = icmp uge i64 %left, %at.once
        %taken = select i1 %are.enough, i64 %at.once, i64 1
        %is.pair = icmp eq i64 %taken, 2
        %w.offset = mul i64 %p, %panel.bytes
        %w.panel = getelementptr i8, ptr %w.k, i64 %w.offset
        %column = mul i64 %p, {PANEL}
        br label %tile
{_tiles()}
    panel.end:
        %p.next = add i64 %p, %taken
        %is.panel = icmp ult i64 %p.next, %end
        br i1 %is.panel, label %panel, label %part.end
    part.end:
        %k.next = add i64 %k, %inputs
        %is.part = icmp ult i64 %k.next, %in
        br i1 %is.part, label %part, label %chunk.end
    chunk.end:
        %is.chunk = icmp ult i64 %t.end, %tiles
        br i1 %is.chunk, label %chunk, label %finish
    finish:
        call void @llvm.x86.tilerelease()
        call void @free(ptr %room)
        br label %done
    done:
        ret void
    }}"""
