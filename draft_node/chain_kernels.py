"""What a small decoder computes between its matrix products, for one pass of chains.

N tokens a pass: those that enter the context with the first one, then B chains. H query heads, KV
key heads, D elements each. All arrays are float32 but for

    tokens  int64 [4, N]  position, place of its row, positions of the context that it sees, and
                          where it is kept: in the pages, or for chains their n-th token
    pages   int64 [R, P]  of every row, in order

Every token reads its own row alone, so none has to be padded, masked or copied for another's sake.
Arguments are contiguous, always: another layout would be compiled for when it first occurs.
"""

import numpy as np

from draft_node.compiled import compiled, exp, largest
from draft_node.context import BLOCK_SIZE

POSITION, PLACE, SEEN, SLOT = range(4)
UNROLLED = 8  # of a product's inner sums: head_dim has to be a multiple

Array = np.ndarray
Pair = tuple[Array, Array]


@compiled
def normed(x: Array, weight: Array, eps: np.float32, out: Array) -> None:
    """out = x / rms(x) * weight, all [N, size] but for weight [size]."""
    num_tokens, size = x.shape
    for token in range(num_tokens):
        square = np.float32(0)
        for i in range(size):
            square += x[token, i] * x[token, i]
        scale = np.float32(1) / np.sqrt(square / np.float32(size) + eps)
        for i in range(size):
            out[token, i] = x[token, i] * scale * weight[i]


@compiled
def add_normed(x: Array, added: Array, weight: Array, eps: np.float32, out: Array) -> None:
    """x += added, then as `normed`."""
    num_tokens, size = x.shape
    for token in range(num_tokens):
        square = np.float32(0)
        for i in range(size):
            value = x[token, i] + added[token, i]
            x[token, i] = value
            square += value * value
        scale = np.float32(1) / np.sqrt(square / np.float32(size) + eps)
        for i in range(size):
            out[token, i] = x[token, i] * scale * weight[i]


@compiled
def gated(gate_up: Array, out: Array) -> None:
    """silu(gates) * ups: [N, 2 * width], gates first -> [N, width]."""
    num_tokens, width = out.shape
    for token in range(num_tokens):
        for i in range(width):
            gate = gate_up[token, i]
            out[token, i] = gate / (np.float32(1) + exp(-gate)) * gate_up[token, width + i]


@compiled
def _turn(x: Array, angles: Array, out: Array) -> None:
    """One head [D] turned by the angles [2, D] of its position, as `specserve.model.rope`."""
    half = len(out) // 2
    for i in range(half):
        first, second = x[i], x[half + i]
        out[i] = first * angles[0, i] + second * angles[1, i]
        out[half + i] = second * angles[0, half + i] + first * angles[1, half + i]


@compiled
def place_heads(
    qkv: Array,
    norm: tuple[Array, np.float32],
    rotary: Array,
    tokens: Array,
    cache: Pair,
    own: Array,
    queries: Array,
) -> None:
    """Split qkv [N, (H + 2 KV) * D]: norm and turn queries and keys, keep keys and values.

    norm: weight [H + KV, D] and eps, weight [0, D] for none; rotary [positions, 2, D]; cache: keys
    and values of a layer, [KV, slots, D] each; own [2, B, KV, G, D]: those of chains of G tokens;
    queries [N, H, D].
    """
    weight, eps = norm
    num_tokens, num_heads, size = queries.shape
    num_kv_heads, num_entering = own.shape[2], num_tokens - own.shape[1]
    head = np.empty(size, np.float32)
    for token in range(num_tokens):
        angles, slot = rotary[tokens[POSITION, token]], tokens[SLOT, token]
        for h in range(num_heads + num_kv_heads):
            head[:] = qkv[token, h * size : (h + 1) * size]
            if len(weight):
                square = np.float32(0)
                for i in range(size):
                    square += head[i] * head[i]
                scale = np.float32(1) / np.sqrt(square / np.float32(size) + eps)
                for i in range(size):
                    head[i] *= scale * weight[h, i]
            if h < num_heads:
                _turn(head, angles, queries[token, h])
            elif token < num_entering:
                _turn(head, angles, cache[0][h - num_heads, slot])
            else:
                _turn(head, angles, own[0, token - num_entering, h - num_heads, slot])
        for g in range(num_kv_heads):
            start = (num_heads + num_kv_heads + g) * size
            value = qkv[token, start : start + size]
            if token < num_entering:
                cache[1][g, slot] = value
            else:
                own[1, token - num_entering, g, slot] = value


@compiled
def gather_columns(cache: Pair, pages: Array, num_pages: Array, columns: Array) -> None:
    """Keys and values of R rows, out of their pages, as columns [2, R, KV, D, P * page]."""
    _, num_rows, num_kv_heads, size, _ = columns.shape
    for kind in range(2):
        for row in range(num_rows):
            for g in range(num_kv_heads):
                for page in range(num_pages[row]):
                    slot, start = pages[row, page] * BLOCK_SIZE, page * BLOCK_SIZE
                    for key in range(BLOCK_SIZE):
                        entry = cache[kind][g, slot + key]
                        for i in range(size):
                            columns[kind, row, g, i, start + key] = entry[i]


@compiled
def attend(queries: Array, tokens: Array, columns: Array, own: Array, out: Array) -> None:
    """Attention of every token to its row's context and to its chain so far.

    columns as of `gather_columns`, own as of `place_heads`; queries and out [N, H, D].
    """
    num_tokens, num_heads, size = queries.shape
    num_kv_heads = own.shape[2]
    num_entering, per_kv = num_tokens - own.shape[1], num_heads // num_kv_heads
    scale = np.float32(1) / np.sqrt(np.float32(size))
    scores = np.empty((per_kv, columns.shape[4] + own.shape[3]), np.float32)
    for g in range(num_kv_heads):
        for token in range(num_tokens):
            row, seen, chain = tokens[PLACE, token], tokens[SEEN, token], token - num_entering
            group = queries[token, g * per_kv : (g + 1) * per_kv]
            _score(group, columns[0, row, g], seen, scores)
            num_own = 0 if chain < 0 else tokens[SLOT, token] + 1
            for h in range(per_kv):
                if chain >= 0:
                    _score_own(group[h], own[0, chain, g, :num_own], scores[h, seen:])
                total = _soften(scores[h, : seen + num_own], scale)
                found = out[token, g * per_kv + h]
                _weigh(scores[h, :seen], columns[1, row, g], found)
                if chain >= 0:
                    _weigh_own(scores[h, seen:], own[1, chain, g, :num_own], found)
                for i in range(size):
                    found[i] /= total


@compiled
def _score(queries: Array, columns: Array, seen: int, scores: Array) -> None:
    """Products of a group's queries [n, D] with columns [D, L]: scores[:, :seen], and some more.

    Keys are the inner loop: whole pages of them, so that none is left over from a vector.
    """
    num_queries, size = queries.shape
    num_keys = (seen + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE
    for h in range(num_queries):
        for key in range(num_keys):
            scores[h, key] = np.float32(0)
    for i in range(0, size, UNROLLED):
        for h in range(num_queries):
            q0, q1, q2, q3 = queries[h, i], queries[h, i + 1], queries[h, i + 2], queries[h, i + 3]
            q4, q5 = queries[h, i + 4], queries[h, i + 5]
            q6, q7 = queries[h, i + 6], queries[h, i + 7]
            for key in range(num_keys):
                scores[h, key] += (
                    q0 * columns[i, key]
                    + q1 * columns[i + 1, key]
                    + q2 * columns[i + 2, key]
                    + q3 * columns[i + 3, key]
                    + q4 * columns[i + 4, key]
                    + q5 * columns[i + 5, key]
                    + q6 * columns[i + 6, key]
                    + q7 * columns[i + 7, key]
                )


@compiled
def _score_own(query: Array, keys: Array, scores: Array) -> None:
    """Products of one query [D] with keys [n, D]."""
    for key in range(len(keys)):
        total = np.float32(0)
        for i in range(len(query)):
            total += query[i] * keys[key, i]
        scores[key] = total


@compiled
def _soften(scores: Array, scale: np.float32) -> np.float32:
    """exp(scale * (score - largest)) in place; their sum."""
    most, total = largest(scores), np.float32(0)
    for key in range(len(scores)):
        weight = exp((scores[key] - most) * scale)
        scores[key] = weight
        total += weight
    return total


@compiled
def _weigh(weights: Array, columns: Array, out: Array) -> None:
    """out [D] = columns [D, L] times weights [n]; what lies behind the n-th may be no number."""
    for i in range(0, len(out), 4):
        a = b = c = d = np.float32(0)
        for key in range(len(weights)):
            weight = weights[key]
            a += weight * columns[i, key]
            b += weight * columns[i + 1, key]
            c += weight * columns[i + 2, key]
            d += weight * columns[i + 3, key]
        out[i], out[i + 1], out[i + 2], out[i + 3] = a, b, c, d


@compiled
def _weigh_own(weights: Array, values: Array, out: Array) -> None:
    """out [D] += weights [n] times values [n, D]."""
    for key in range(len(values)):
        for i in range(len(out)):
            out[i] += weights[key] * values[key, i]
