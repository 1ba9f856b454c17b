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
pairs of inputs, 16 columns, 2]. An input's row is cut once for all panels (of two tiles with an odd
number of rows the one in the middle twice). Two tiles of rows take a weight together; more are
taken in chunks of tiles. Their inputs are taken in parts, so that what is cut stays in the inner
caches; sums wait in y for the next part.
"""

from specserve.backends.cpu.codegen.row_code import checked, task
from specserve.models.tile_steps import (
    PANEL,
    ROWS,
    SHARES,
    STEP,
    TILE_LINE,
    step_bytes,
    step_code,
)

_CHUNK = 8  # tiles of rows that are cut at a time, ...
PART = 1024  # ... and inputs
PART_OF_TWO = 128  # of two tiles alone: three pieces of them are 24 KB, half of a cache


def code(*, rounds: bool = False) -> str:
    """`rounds` is whether inputs are, to bfloat16."""
    num_pieces = 1 if rounds else 3
    step = step_bytes(num_pieces)
    return "\n".join(
        [
            """
        %call = type { ptr, ptr, ptr, ptr, i64, i64, i64 }
        declare void @llvm.x86.tilerelease()
        declare ptr @aligned_alloc(i64, i64)
        declare void @free(ptr)
        declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
        attributes #0 = { "min-legal-vector-width"="512" "prefer-vector-width"="512" }""",
            *step_code(num_pieces),
            _cut_all(step),
            _two_tiles(step),
            _rows(step),
            task("any"),
        ]
    )


def _place(tile: str) -> str:
    """%row, where a tile begins, and %height, how many rows it has: all have as many, or one more.

    Were all full but the last, 33 rows would take nearly as long as 48: a tile of one row has the
    others' loads of weights, and the unit would be configured twice for each pair of panels.
    """
    return f"""
        %are.higher = icmp ult i64 {tile}, %extra
        %one.more = zext i1 %are.higher to i64
        %height = add i64 %even, %one.more
        %higher = select i1 %are.higher, i64 {tile}, i64 %extra
        %row.even = mul i64 {tile}, %even
        %row = add i64 %row.even, %higher"""


def _heights() -> str:
    """%even, rows of a tile at least, and %extra, tiles that have one more, the first ones."""
    return """
        %even = udiv i64 %rows, %tiles
        %extra = urem i64 %rows, %tiles"""


def _cut_all(step: int) -> str:
    """`part` inputs of tiles first to end - 1."""
    return f"""
    define internal void @cut_all(ptr %x, i64 %in, i64 %part, i64 %even, i64 %extra, i64 %first,
                                  i64 %end, ptr %room) #0 {{
    entry:
        %tile.bytes = mul i64 %part, {step // STEP}
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


def _two_tiles(step: int) -> str:
    """17 to 32 rows: parts of the inputs, in them panels, each by both tiles at once.

    What is cut is on the stack, 24 KB. Tiles have half of the rows each, the second one overlaps
    the first if these are odd: the unit takes as long for a tile as that has rows, and longer to be
    configured for another height.
    """
    return f"""
    define internal void @two_tiles(ptr %x, ptr %weight, ptr %y, i64 %in, i64 %panels, i64 %rows,
                                    i64 %first, i64 %end) #0 "probe-stack"="inline-asm" {{
    entry:
        %room = alloca [{2 * PART_OF_TWO // STEP * step} x i8], align {TILE_LINE}
        %room.other = getelementptr i8, ptr %room, i64 {PART_OF_TWO // STEP * step}
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
        call void @pair(ptr %room, i64 {PART_OF_TWO // STEP * step}, ptr %w.panel,
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


def _part(step: int) -> str:
    """Where a part of a chunk's inputs is, how many they are, and its pieces."""
    return f"""
    part:
        %k = phi i64 [0, %chunk], [%k.next, %part.end]
        %is.first = icmp eq i64 %k, 0
        %k.left = sub i64 %in, %k
        %is.last = icmp ult i64 %k.left, %most.inputs
        %inputs = select i1 %is.last, i64 %k.left, i64 %most.inputs
        %tile.bytes = mul i64 %inputs, {step // STEP}
        %x.k = getelementptr float, ptr %x, i64 %k
        call void @cut_all(ptr %x.k, i64 %in, i64 %inputs, i64 %even, i64 %extra,
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
        %is.later = icmp ugt i64 %n, {SHARES - 1}
        %share = select i1 %is.later, i64 {SHARES - 1}, i64 %n
        call void @panels_2(ptr %pieces, ptr %w.panel, ptr %y.tile, i64 %inputs,
                            i64 %panel.bytes, i64 %line, i1 %is.first, i64 %share)
        br label %tile.end
    single:
        call void @panels_1(ptr %pieces, ptr %w.panel, ptr %y.tile, i64 %inputs,
                            i64 %panel.bytes, i64 %line, i1 %is.first, i64 0)
        br label %tile.end
    tile.end:
        %t.next = add i64 %t, 1
        %is.tile = icmp ult i64 %t.next, %t.end
        br i1 %is.tile, label %tile, label %panel.end"""


def _sizes(step: int) -> str:
    """How many tiles there are, how many panels and inputs at a time, and room for the pieces."""
    return f"""
        %rows.up = add i64 %rows, {ROWS - 1}
        %tiles = udiv i64 %rows.up, {ROWS}
        {_heights()}
        store i64 0, ptr %configured
        %is.few = icmp ult i64 %tiles, {_CHUNK}
        %most = select i1 %is.few, i64 %tiles, i64 {_CHUNK}
        %is.one = icmp eq i64 %tiles, 1
        %at.once = select i1 %is.one, i64 1, i64 2
        %is.short = icmp ult i64 %in, {PART}
        %is.uncut = or i1 %is.one, %is.short
        %most.inputs = select i1 %is.uncut, i64 %in, i64 {PART}
        %most.bytes = mul i64 %most.inputs, {step // STEP}
        %room.bytes = mul i64 %most, %most.bytes
        %room = call ptr @aligned_alloc(i64 {TILE_LINE}, i64 %room.bytes)
        {checked("%room", PANEL)}
        %width = mul i64 %panels, {PANEL}
        %line = mul i64 %width, 4
        %panel.bytes = mul i64 %in, {2 * PANEL}"""


def _rows(step: int) -> str:
    """Chunks of tiles of rows, in them parts of the inputs, in them panels, in them the tiles.

    One tile of rows takes panels whole and one by one, as they come from memory; more than two take
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
        %beyond.one = sub i64 %rows, {ROWS + 1}
        %are.two = icmp ult i64 %beyond.one, {ROWS}
        br i1 %are.two, label %two, label %start
    two:
        call void @two_tiles(ptr %x, ptr %weight, ptr %y, i64 %in, i64 %panels, i64 %rows,
                             i64 %first, i64 %end)
        br label %done
    start:
        {_sizes(step)}
        br label %chunk
    chunk:
        %t.first = phi i64 [0, %is.there], [%t.end, %chunk.end]
        %t.wanted = add i64 %t.first, {_CHUNK}
        %is.whole = icmp ult i64 %t.wanted, %tiles
        %t.end = select i1 %is.whole, i64 %t.wanted, i64 %tiles
        br label %part
    {_part(step)}
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
