"""All that a small decoder computes in one pass of chains, compiled: one call a pass.

Around a small product torch dispatches a dozen operations, each of which costs more than what it
computes. All are in this file, because numba compiles anew what it has kept of a file only when
that very file changes. Products are those of `specserve.model.row_code`, called by address.

N tokens a pass: those that enter the context with the first one, then B chains. H query heads, KV
key heads, D elements each. All arrays are contiguous, and float32 but for

    tokens  int64 [4, N]  position, place of its row, positions of the context that it sees, and
                          where it is kept: in the pages, or for chains their n-th token
    pages   int64 [R, P]  of every row, in order

Every token reads its own row alone, as it lies in the pages: nothing is padded, masked or copied
for another's sake. No index is checked here; who calls knows what there is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from specserve import compiled
from specserve.address_call import call

POSITION, PLACE, SEEN, SLOT = range(4)  # of `tokens`
KEYS = 8  # computed at once: a page holds a multiple

Array = np.ndarray
Pair = tuple[Array, Array]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sums may be reordered, so that they are vectors; every token still has an order of its own, the
# same in any batch. What is not finite stays that.
_ARITHMETIC = {"contract", "reassoc", "arcp", "nsz"}
_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _MOST_EXPONENT, _BIAS = np.float32(-126.0), np.float32(127.0), np.int32(127)
_MANTISSA_BITS = np.int32(23)
_LEAST_GAP = np.float32(-1e4)  # of logits: a token that is impossible adds nothing


def _compiled(function: _Function, arithmetic: set[str] = _ARITHMETIC) -> _Function:
    """As a decorator."""
    return compiled.compiled(function, arithmetic)


# --- numbers -------------------------------------------------------------------------------------


@_compiled
def exp(x: np.float32) -> np.float32:
    """e**x to the last few bits, in a form that loops are vectorised with; 1e-38 to 2e38."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:  # false for NaN, which is to stay one
        scaled = _LEAST_EXPONENT
    if scaled > _MOST_EXPONENT:
        scaled = _MOST_EXPONENT
    whole = np.floor(scaled + np.float32(0.5))
    part = scaled - whole  # -.5 to .5, and 2**part by its series
    power = np.float32(1.5403530e-4)
    power = power * part + np.float32(1.3333558e-3)
    power = power * part + np.float32(9.6181291e-3)
    power = power * part + np.float32(5.5504109e-2)
    power = power * part + np.float32(2.4022651e-1)
    power = power * part + np.float32(6.9314718e-1)
    power = power * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS)
    return power * bits.view(np.float32)


def _largest(values: Array) -> np.float32:
    """Of [N], N above 0; any of them if one is no number."""
    most = values[0]
    for value in values:
        if value > most:
            most = value
    return most


# Comparisons are a vector only where nobody asks about NaN.
largest = _compiled(_largest, _ARITHMETIC | {"nnan"})


@_compiled
def law_features(logits: Array, out: Array) -> None:
    """logits [N, V] -> log of the largest probability, and entropy in nats: [N, 2]."""
    for row in range(len(logits)):
        most = largest(logits[row])
        total = weighted = np.float32(0)
        for token in range(logits.shape[1]):
            gap = max(logits[row, token] - most, _LEAST_GAP)
            weight = exp(gap)
            total += weight
            weighted += weight * gap
        log_total = np.log(total)
        out[row, 0] = -log_total
        out[row, 1] = log_total - weighted / total


# --- a layer -------------------------------------------------------------------------------------


@_compiled
def add_normed(x: Array, added: Array, weight: Array, eps: np.float32, out: Array) -> None:
    """x += added [N, >= size]; out = x / rms(x) * weight, all [N, size] but for weight [size]."""
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


@_compiled
def gated(gate_up: Array, out: Array) -> None:
    """silu(gates) * ups: [N, 2 * width], gates first -> [N, width]."""
    num_tokens, width = out.shape
    for token in range(num_tokens):
        for i in range(width):
            gate = gate_up[token, i]
            out[token, i] = gate / (np.float32(1) + exp(-gate)) * gate_up[token, width + i]


@_compiled
def _turn(x: Array, angles: Array, out: Array) -> None:
    """One head [D] turned by the angles [2, D] of its position, as `specserve.model.rope`."""
    half = len(out) // 2
    for i in range(half):
        first, second = x[i], x[half + i]
        out[i] = first * angles[0, i] + second * angles[1, i]
        out[half + i] = second * angles[0, half + i] + first * angles[1, half + i]


@_compiled
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


# --- products ------------------------------------------------------------------------------------


@_compiled
def multiply(x: Array, product: Array, blocks: Array, out: Array) -> None:
    """x [N, in] times a packed weight -> [N, panels * panel].

    product [4]: address of the weight, inputs, panels, and its row of blocks [storages, n], which
    holds the addresses of the functions for blocks of 1 to n rows.
    """
    functions = blocks[product[3]]
    num_rows, in_size, num_panels = len(x), product[1], product[2]
    num_blocks = -(-num_rows // len(functions))
    function = functions[-(-num_rows // num_blocks) - 1]
    words = (x.ctypes.data, product[0], out.ctypes.data, in_size, num_panels, num_rows)
    call(function, (*words, 0, num_panels))


# --- attention -----------------------------------------------------------------------------------


@_compiled
def attend(
    queries: Array,
    tokens: Array,
    pages: Array,
    page_size: int,
    cache: Pair,
    own: Array,
    out: Array,
) -> None:
    """Attention of every token to its row's context and to its chain so far.

    cache and own as of `place_heads`; queries and out [N, H, D].
    """
    num_tokens, num_heads, size = queries.shape
    num_kv_heads = own.shape[2]
    num_entering, per_kv = num_tokens - own.shape[1], num_heads // num_kv_heads
    scale = np.float32(1) / np.sqrt(np.float32(size))
    scores = np.empty((per_kv, pages.shape[1] * page_size + own.shape[3]), np.float32)
    for g in range(num_kv_heads):
        for token in range(num_tokens):
            table, seen = pages[tokens[PLACE, token]], tokens[SEEN, token]
            chain = token - num_entering
            num_own = 0 if chain < 0 else tokens[SLOT, token] + 1
            group = queries[token, g * per_kv : (g + 1) * per_kv]
            _score(group, cache[0][g], table, page_size, seen, scores)
            for h in range(per_kv):
                found = out[token, g * per_kv + h]
                if num_own:
                    _score_own(group[h], own[0, chain, g, :num_own], scores[h, seen:])
                total = _soften(scores[h, : seen + num_own], scale)
                _weigh(scores[h, :seen], cache[1][g], table, page_size, found)
                if num_own:
                    _weigh_own(scores[h, seen:], own[1, chain, g, :num_own], found)
                for i in range(size):
                    found[i] /= total


@_compiled
def _score(
    queries: Array, keys: Array, table: Array, page_size: int, seen: int, scores: Array
) -> None:
    """Products of a group's queries [n, D] with the first `seen` keys, and with a few more."""
    num_queries, size = queries.shape
    for start in range(0, seen, KEYS):
        slot = table[start // page_size] * page_size + start % page_size
        for h in range(num_queries):
            for part in range(0, KEYS, 4):
                key, place = slot + part, start + part
                a = b = c = d = np.float32(0)
                for i in range(size):
                    q = queries[h, i]
                    a += q * keys[key, i]
                    b += q * keys[key + 1, i]
                    c += q * keys[key + 2, i]
                    d += q * keys[key + 3, i]
                scores[h, place], scores[h, place + 1] = a, b
                scores[h, place + 2], scores[h, place + 3] = c, d


@_compiled
def _score_own(query: Array, keys: Array, scores: Array) -> None:
    """Products of one query [D] with keys [n, D]."""
    for key in range(len(keys)):
        total = np.float32(0)
        for i in range(len(query)):
            total += query[i] * keys[key, i]
        scores[key] = total


@_compiled
def _soften(scores: Array, scale: np.float32) -> np.float32:
    """exp(scale * (score - largest)) in place; their sum."""
    most, total = largest(scores), np.float32(0)
    for key in range(len(scores)):
        weight = exp((scores[key] - most) * scale)
        scores[key] = weight
        total += weight
    return total


@_compiled
def _weigh(weights: Array, values: Array, table: Array, page_size: int, out: Array) -> None:
    """out [D] = weights [n] times their values, which lie in pages."""
    out[:] = np.float32(0)
    seen = len(weights)
    end = seen // KEYS * KEYS
    for key in range(0, end, KEYS):
        slot = table[key // page_size] * page_size + key % page_size
        w0, w1, w2, w3 = weights[key], weights[key + 1], weights[key + 2], weights[key + 3]
        w4, w5, w6, w7 = weights[key + 4], weights[key + 5], weights[key + 6], weights[key + 7]
        for i in range(len(out)):
            out[i] += (
                w0 * values[slot, i]
                + w1 * values[slot + 1, i]
                + w2 * values[slot + 2, i]
                + w3 * values[slot + 3, i]
                + w4 * values[slot + 4, i]
                + w5 * values[slot + 5, i]
                + w6 * values[slot + 6, i]
                + w7 * values[slot + 7, i]
            )
    for key in range(end, seen):  # what lies behind may be anybody's, and no number
        slot = table[key // page_size] * page_size + key % page_size
        for i in range(len(out)):
            out[i] += weights[key] * values[slot, i]


@_compiled
def _weigh_own(weights: Array, values: Array, out: Array) -> None:
    """out [D] += weights [n] times values [n, D]."""
    for key in range(len(values)):
        for i in range(len(out)):
            out[i] += weights[key] * values[key, i]


# --- a pass --------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Of a model of L layers with hidden size E."""

    embedding: Array  # [V, E]
    norms: Array  # [2 L + 1, E], in the order in which they are applied
    epsilons: Array  # [2 L + 1]
    head_norms: Array  # [L, H + KV, D], or [L, 0, D] for none
    head_epsilons: Array  # [L]
    rotary: Array  # [positions, 2, D]
    products: Array  # int64 [L, 4, 4], of qkv, o, gate and up, down: as of `multiply`
    blocks: Array  # int64 [storages, n]
    sizes: tuple[int, int, int]  # H, width of the gates, columns of a panel


@_compiled
def make_pass(
    token_ids: Array,
    tokens: Array,
    weights: Weights,
    pages: Array,
    page_size: int,
    cache: Pair,
    own: Array,
) -> Array:
    """Final hidden states [N, E] of token_ids [N].

    cache: keys and values [L, KV, slots, D]; own [L, 2, B, KV, G, D].
    """
    num_heads, width, panel = weights.sizes
    num_tokens, size = len(token_ids), own.shape[5]
    x = np.empty((num_tokens, weights.norms.shape[1]), np.float32)
    for token in range(num_tokens):
        if not 0 <= token_ids[token] < len(weights.embedding):
            raise IndexError("a token id is beyond the vocabulary")
        x[token] = weights.embedding[token_ids[token]]
    hidden, queries = np.empty_like(x), np.empty((num_tokens, num_heads, size), np.float32)
    add_normed(x, np.zeros_like(x), weights.norms[0], weights.epsilons[0], hidden)
    attended = np.empty_like(queries)
    flat = attended.reshape(num_tokens, num_heads * size)
    between = np.empty((num_tokens, width), np.float32)
    for layer in range(len(own)):
        products, kept = weights.products[layer], (cache[0][layer], cache[1][layer])
        norm = weights.head_norms[layer], weights.head_epsilons[layer]
        qkv = np.empty((num_tokens, products[0, 2] * panel), np.float32)
        multiply(hidden, products[0], weights.blocks, qkv)
        place_heads(qkv, norm, weights.rotary, tokens, kept, own[layer], queries)
        attend(queries, tokens, pages, page_size, kept, own[layer], attended)
        out = np.empty((num_tokens, products[1, 2] * panel), np.float32)
        multiply(flat, products[1], weights.blocks, out)
        after = 2 * layer + 1
        add_normed(x, out, weights.norms[after], weights.epsilons[after], hidden)
        gate_up = np.empty((num_tokens, products[2, 2] * panel), np.float32)
        multiply(hidden, products[2], weights.blocks, gate_up)
        gated(gate_up, between)
        multiply(between, products[3], weights.blocks, out)
        add_normed(x, out, weights.norms[after + 1], weights.epsilons[after + 1], hidden)
    return hidden
