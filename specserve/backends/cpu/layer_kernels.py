"""All that a decoder computes for tokens of many rows, compiled: one call a forward.

Around a product of few tokens torch dispatches some thirty small operations a layer, and attention
copies what it reads; both cost more than what they compute. Here products (`row_code`) and those of
attention (`attention_code`) are called by address, and the rest lies between them.
`kernel_arguments` has the arrays' shapes. Only the batch is checked here.

Arithmetic is strict: no flag lets LLVM reorder or contract anything, so whatever it makes of a loop
has the bits of the loop as it is written, and every loop is over one token's own numbers. That is
why a token's bits do not depend on the batch, on chunks, threads or ranks, by construction. Sums
are 16 interleaved ones, so that they may still be vectors.

A model of L layers has parts 0 to 2 L. Each adds what the one before has led to and norms it; even
ones then attend, odd ones gate, the last does nothing more. A closing product leads to the next.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.kernel_arguments import Array, Batch, KernelArguments, Shape, Thread
from specserve.backends.cpu.primitives import call, exp32

LANES = 16  # of a sum
PENDING, RUNNING, REFUSED, DONE = range(4)  # a call

_Function = TypeVar("_Function", bound=Callable[..., object])


# --- numbers -------------------------------------------------------------------------------------


def _compiled(function: _Function) -> _Function:
    """As a decorator; `kernel_layout` keeps what all of them make together."""
    return compiled.compiled(function, is_kept=False)


_exp = _compiled(exp32)


@_compiled
def _rms_scale(x: Array, eps: np.float32, lanes: Array) -> np.float32:
    """1 / rms of x."""
    size = len(x)
    whole = size // LANES * LANES
    lanes[:] = np.float32(0)
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += x[start + lane] * x[start + lane]
    for i in range(whole, size):
        lanes[i - whole] += x[i] * x[i]
    width = LANES // 2
    while width:
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
        width //= 2
    return np.float32(1) / np.sqrt(lanes[0] / np.float32(size) + eps)


@_compiled
def _share(number: int, thread: Thread) -> slice:
    """What a thread does of `number` things."""
    return slice(number * thread.number // thread.team, number * (thread.number + 1) // thread.team)


@_compiled
def _lay_out(args: KernelArguments) -> bool:
    """Where every token is and is kept, workspace.places; whether all of it exists."""
    batch, page_size, places = (args.batch, args.sizes.page_size, args.workspace.places)
    num_tokens, num_done = places.shape[1], 0
    for row in range(len(batch.rows)):
        count, end, num_shared, _ = batch.rows[row]
        if not 0 < count <= min(end - num_shared, num_tokens - num_done):
            return False
        if num_shared < 0 or end > len(args.weights.rotary):
            return False
        if num_shared + -(-(end - num_shared) // LANES) * LANES > args.sizes.num_keys:
            return False
        if not _are_there(batch.shared[row], num_shared, args):
            return False
        if not _are_there(batch.pages[row], end - num_shared, args):
            return False
        for position in range(end - count, end):
            own = position - num_shared
            places[0, num_done] = position
            places[1, num_done] = batch.pages[row, own // page_size] * page_size + own % page_size
            num_done += 1
    return num_done == num_tokens


@_compiled
def _are_there(pages: Array, num_positions: int, args: KernelArguments) -> bool:
    """Whether so many positions lie in pages that there are; the first is nobody's."""
    page_size = args.sizes.page_size
    used, num_pages = -(-num_positions // page_size), args.cache.values.shape[1]
    if used > len(pages):
        return False
    for page in pages[:used]:  # noqa: SIM110 - this is compiled
        if not 0 < page < num_pages:
            return False
    return True


# --- a layer -------------------------------------------------------------------------------------


@_compiled
def add_normed(x: Array, added: Array, weight: Array, eps: np.float32, out: Array) -> None:
    """x += added [N, >= E]; out = x / rms(x) * weight, all [N, E] but for weight [E]."""
    num_tokens, size = x.shape
    lanes = np.empty(LANES, np.float32)
    for token in range(num_tokens):
        row, more, normed = x[token], added[token], out[token]
        for i in range(size):
            row[i] += more[i]
        scale = _rms_scale(row, eps, lanes)
        for i in range(size):
            normed[i] = row[i] * scale * weight[i]


@_compiled
def gated(gate_up: Array, out: Array) -> None:
    """silu(gates) * ups: [N, >= 2 * width], gates first -> [N, width]."""
    num_tokens, width = out.shape
    for token in range(num_tokens):
        gates, ups, found = gate_up[token, :width], gate_up[token, width:], out[token]
        for i in range(width):
            found[i] = gates[i] / (np.float32(1) + _exp(-gates[i])) * ups[i]


@_compiled
def _turn(x: Array, angles: Array) -> None:
    """One head [D] by the angles [2, D] of its position, as `specserve.models.rope`."""
    half = len(x) // 2
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * angles[0, i] + second * angles[1, i]
        x[half + i] = second * angles[0, half + i] + first * angles[1, half + i]


@_compiled
def place_heads(qkv: Array, layer: int, args: KernelArguments, tokens: slice) -> None:
    """Of qkv [N, >= (H + 2 KV) * D] norm and turn heads, scale queries, keep keys and values."""
    workspace, cache, weights = args.workspace, args.cache, args.weights
    norms, eps = weights.head_norms[layer], weights.head_epsilons[layer]
    num_kv_heads, _, per_kv, size = workspace.queries.shape
    num_heads, page_size = num_kv_heads * per_kv, args.sizes.page_size
    tile, num_bytes = args.sizes.tile, cache.values.shape[4] // size
    scale = np.float32(1) / np.sqrt(np.float32(size))
    lanes, head = np.empty(LANES, np.float32), np.empty(size, np.float32)
    for token in range(tokens.start, tokens.stop):
        position, slot = workspace.places[:, token]
        page, inside = slot // page_size, slot % page_size
        for h in range(num_heads + num_kv_heads):
            head[:] = qkv[token, h * size : (h + 1) * size]
            if len(norms):
                rms = _rms_scale(head, eps, lanes)
                for i in range(size):
                    head[i] = head[i] * rms * norms[h, i]
            _turn(head, weights.rotary[position])
            if h < num_heads:
                query = workspace.queries[h // per_kv, token, h % per_kv]
                for i in range(size):
                    query[i] = head[i] * scale
            else:
                kept = cache.keys[layer, page, h - num_heads, inside // tile * size]
                kept_at = kept[inside % tile * num_bytes :].ctypes.data
                call(args.code.others[1], (head.ctypes.data, kept_at))
        for g in range(num_kv_heads):
            value = qkv[token, (num_heads + num_kv_heads + g) * size :].ctypes.data
            call(args.code.others[2], (value, cache.values[layer, page, g, inside].ctypes.data))


@_compiled
def multiply(x: Array, product: Array, rows: Array, out: Array, thread: Thread) -> None:
    """x [N, in] times a packed weight -> [N, panels * panel], a thread's share of the panels.

    product [4]: address of the weight, inputs, panels, and its storage's place in `rows`.
    """
    functions = rows[product[3]]
    num_rows, in_size, num_panels = len(x), product[1], product[2]
    num_blocks = -(-num_rows // len(functions))
    function = functions[-(-num_rows // num_blocks) - 1]
    panels = _share(num_panels, thread)
    if panels.start < panels.stop:
        words = x.ctypes.data, product[0], out.ctypes.data, in_size, num_panels, num_rows
        call(function, (*words, panels.start, panels.stop))


# --- attention -----------------------------------------------------------------------------------


@_compiled
def _num_alike(place: int, batch: Batch) -> int:
    """Rows from `place` on with as many tokens, all behind the same pages that they share."""
    rows, count = batch.rows, 1
    num_tokens, num_shared = rows[place, 0], rows[place, 2]
    while num_shared and place + count < len(rows):
        other = place + count
        if rows[other, 0] != num_tokens or rows[other, 2] != num_shared:
            break
        if (batch.shared[other] != batch.shared[place]).any():
            break
        count += 1
    return count


@_compiled
def attend(layer: int, args: KernelArguments, thread: Thread) -> None:
    """Attention of all queries to their rows, into workspace.inner [N, H * D].

    Of the blocks of queries a thread computes every one that is its turn. Queries of rows that are
    alike are in one block, so that what they share is read once for all.
    """
    workspace, batch = args.workspace, args.batch
    most_rows, size = args.code.attention.shape[1], workspace.queries.shape[3]
    per_kv = workspace.queries.shape[2]
    found, totals = np.empty((2, most_rows, size), np.float32), np.empty(most_rows, np.float32)
    first = turn = place = 0
    while place < len(batch.rows):
        num_alike = _num_alike(place, batch)
        num_queries = num_alike * batch.rows[place, 0] * per_kv
        num_blocks = -(-num_queries // most_rows)
        height = -(-num_queries // num_blocks)
        for g in range(len(workspace.queries)):
            for block in range(num_blocks):
                turn += 1
                if turn % thread.team == thread.number:
                    # What no full block is left for is computed twice.
                    start = min(block * height, num_queries - height)
                    where = place, g, first, start, height
                    _attend_block(where, layer, args, thread, found, totals)
        first += num_alike * batch.rows[place, 0]
        place += num_alike


@_compiled
def _attend_block(
    where: Shape, layer: int, args: KernelArguments, thread: Thread, found: Array, totals: Array
) -> None:
    """Some queries of rows that are alike, of one key head.

    where: first row, key head, the row's first token, first query, how many. found [2, n, D] and
    totals [n] are room. All scores of a query stand in one line, first those of shared positions.
    """
    workspace, batch, cache, page_size = (
        args.workspace,
        args.batch,
        args.cache,
        args.sizes.page_size,
    )
    place, g, first, start, height = where
    num_kv_heads, num_tokens, per_kv, size = workspace.queries.shape
    num_shared, tile = batch.rows[place, 2], args.sizes.tile
    keys, values = cache.keys[layer, 0, g].ctypes.data, cache.values[layer, 0, g].ctypes.data
    page_stride = num_kv_heads * page_size * size
    scores, stride = workspace.scores[thread.number], workspace.scores.shape[2]
    line, shared = scores.ctypes.data, batch.shared[place].ctypes.data
    queries = workspace.queries[g, first:].reshape(-1, size)[start:]
    score, weigh = args.code.attention[0, height - 1], args.code.attention[1, height - 1]
    if num_shared:
        what = queries.ctypes.data, keys, shared, -(-num_shared // tile), page_size // tile
        call(score, (*what, page_stride, line, stride))
    at, per_row = 0, batch.rows[place, 0] * per_kv
    while at < height:
        row, query = (start + at) // per_row, (start + at) % per_row
        count = min(per_row - query, height - at)
        part = place + row, g, query, at, count
        _attend_to_own(part, layer, args, thread, queries, found[1], totals)
        at += count
    if num_shared:
        rest = num_shared, page_size, page_stride, found[0].ctypes.data
        call(weigh, (line, stride, values, shared, *rest))
        for i in range(height):
            for d in range(size):
                found[1, i, d] += found[0, i, d]
    out = workspace.inner[: workspace.queries.size].reshape(num_tokens, num_kv_heads * per_kv, size)
    for i in range(height):
        token, h = first + (start + i) // per_kv, g * per_kv + (start + i) % per_kv
        for d in range(size):
            out[token, h, d] = found[1, i, d] / totals[i]


@_compiled
def _attend_to_own(
    part: Shape,
    layer: int,
    args: KernelArguments,
    thread: Thread,
    queries: Array,
    found: Array,
    totals: Array,
) -> None:
    """Scores of queries of one row in its own pages, all their weights, and what is found there.

    part: row, key head, the first one's number in the row and in the block, how many.
    """
    batch, cache, page_size = args.batch, args.cache, args.sizes.page_size
    place, g, query, at, height = part
    count, end, num_shared, sees_all = batch.rows[place]
    num_kv_heads, _, per_kv, size = args.workspace.queries.shape
    tile, page_stride = args.sizes.tile, num_kv_heads * page_size * size
    score, weigh = args.code.attention[0, height - 1], args.code.attention[1, height - 1]
    pages, scores = batch.pages[place].ctypes.data, args.workspace.scores[thread.number]
    before_last = 0 if sees_all else count - 1 - (query + height - 1) // per_kv
    most, stride = end - before_last, scores.shape[1]
    own_line = scores[at].ctypes.data + num_shared * scores.itemsize
    keys, values = cache.keys[layer, 0, g].ctypes.data, cache.values[layer, 0, g].ctypes.data
    what = queries[at:].ctypes.data, keys, pages, -(-(most - num_shared) // tile)
    call(score, (*what, page_size // tile, page_stride, own_line, stride))
    for i in range(height):
        seen = end if sees_all else end - count + 1 + (query + i) // per_kv
        sizes = seen, -(-most // LANES) * LANES
        call(
            args.code.others[0], (scores[at + i].ctypes.data, *sizes, totals[at + i :].ctypes.data)
        )
    rest = most - num_shared, page_size, page_stride, found[at:].ctypes.data
    call(weigh, (own_line, stride, values, pages, *rest))


# --- a forward -----------------------------------------------------------------------------------


@_compiled
def _wait(args: KernelArguments, thread: Thread) -> None:
    """Until all threads have come here."""
    if thread.team > 1:
        call(args.code.others[3], (0,))


@_compiled
def _product(x: Array, product: Array, args: KernelArguments, out: Array, thread: Thread) -> Array:
    """`multiply` by the whole team, into a flat workspace: [N, panels * panel]."""
    shape = len(x), product[2] * args.sizes.panel
    result = out[: shape[0] * shape[1]].reshape(shape)
    multiply(x, product, args.code.rows, result, thread)
    _wait(args, thread)
    return result


@_compiled
def _enter(part: int, args: KernelArguments, tokens: slice) -> None:
    """Add what the part before has led to, keep it if asked for, and norm it."""
    weights, taps = args.weights, args.tokens.taps
    x, added, hidden = (
        args.tokens.x[tokens],
        args.workspace.added[tokens],
        args.tokens.hidden[tokens],
    )
    if part == 0:
        added[:] = np.float32(0)
    add_normed(x, added, weights.norms[part], weights.epsilons[part], hidden)
    for place in range(len(taps)):
        if part == 2 * taps[place] + 2:
            args.tokens.tapped[place, tokens] = x


@_compiled
def run_parts(args: KernelArguments, thread: Thread) -> None:
    """Parts first_part to end_part - 1 and the closing products between them, a thread's share."""
    sizes, workspace, num_tokens = args.sizes, args.workspace, len(args.tokens.x)
    tokens = _share(num_tokens, thread)
    if thread.number == 0:
        workspace.status[0] = RUNNING if _lay_out(args) else REFUSED
    _wait(args, thread)
    if workspace.status[0] == REFUSED:
        return
    for part in range(sizes.first_part, sizes.end_part):
        layer, is_gate = part // 2, part % 2
        _enter(part, args, tokens)
        _wait(args, thread)
        if layer == len(args.weights.products):
            break
        products = args.weights.products[layer]
        opening, closing = products[2 * is_gate], products[2 * is_gate + 1]
        wide = _product(args.tokens.hidden, opening, args, workspace.wide, thread)
        width = args.weights.widths[layer] if is_gate else workspace.queries.size // num_tokens
        inner = workspace.inner[: num_tokens * width].reshape(num_tokens, width)
        if is_gate:
            gated(wide[tokens], inner[tokens])
        else:
            place_heads(wide, layer, args, tokens)
            _wait(args, thread)
            attend(layer, args, thread)
        _wait(args, thread)
        if part + 1 < sizes.end_part:
            _product(inner, closing, args, workspace.added.reshape(-1), thread)
    if thread.number == 0:
        workspace.status[0] = DONE
