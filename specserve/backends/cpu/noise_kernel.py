"""Philox4x32-10 of many counters, compiled: the words of `specserve.noise`, bit for bit.

Integers, and one rounding to float32, so no bit depends on who computes them. And the exponential
race that they decide, of a row after the other: strict arithmetic, so that a row has the same
winner in any batch; `specserve.sampling.sampling` has the definition.
"""

import functools

import numpy as np

from specserve.backends.cpu import compiled

Words = np.ndarray  # uint64, of 32 bits each, seeds of 64

_FIRST, _SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_FIRST_STEP, _SECOND_STEP = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_NUM_ROUNDS = 10


@compiled.compiled
def word_floats(
    blocks: Words, positions: Words, sample_words: Words, purpose_words: Words, seeds: Words,
    out: np.ndarray,
) -> None:  # fmt: skip
    """out float32 [R, N, 4] = the output words of every counter.

    blocks [R or 1, N]: first counter words; the others of every row, and its key: [R].
    """
    num_rows, num_blocks, _ = out.shape
    words = np.empty((4, num_blocks), np.uint32)  # LLVM makes no vectors of what is interleaved
    for row in range(num_rows):
        block_row = row if len(blocks) > 1 else 0
        position, sample_word = np.uint32(positions[row]), np.uint32(sample_words[row])
        purpose_word = np.uint32(purpose_words[row])
        low, high = np.uint32(seeds[row] & _MASK), np.uint32(seeds[row] >> _HALF)
        for place in range(num_blocks):
            a, b, c, d = np.uint32(blocks[block_row, place]), position, sample_word, purpose_word
            first_key, second_key = low, high
            for _ in range(_NUM_ROUNDS):
                first, second = _FIRST * np.uint64(a), _SECOND * np.uint64(c)
                a = np.uint32(second >> _HALF) ^ b ^ first_key
                c = np.uint32(first >> _HALF) ^ d ^ second_key
                b, d = np.uint32(second & _MASK), np.uint32(first & _MASK)
                first_key = np.uint32(first_key + _FIRST_STEP)
                second_key = np.uint32(second_key + _SECOND_STEP)
            words[0, place], words[1, place], words[2, place], words[3, place] = a, b, c, d
        for place in range(num_blocks):
            for word in range(4):
                out[row, place, word] = np.float32(words[word, place])


# --- the race ------------------------------------------------------------------------------------

_ONE, _HALF_FLOAT, _WORD = np.float32(1.0), np.float32(0.5), np.float32(2.0**-32)
_MOST_UNIFORM = np.float32(1.0 - 2.0**-24)  # the largest float32 below 1
_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _BIAS, _MANTISSA_BITS = np.float32(-126.0), np.int32(127), np.int32(23)
_MANTISSA, _ONE_BITS = np.int32(0x007FFFFF), np.int32(0x3F800000)
NOBODY = -1  # wins where nothing can be drawn
_STRIPE = 64  # values looked at together, which may be vectors
_SQRT_2, _LN_2_HIGH = np.float32(1.41421356), np.float32(0.693359375)
_LN_2_LOW = np.float32(-2.12194440e-4)  # and both are ln 2


@compiled.compiled
def largest(values: np.ndarray) -> np.float32:
    """Of float32 [N], N above 0; any of them if one is no number."""
    most, whole = values[0], len(values) // _STRIPE * _STRIPE
    lanes = np.full(_STRIPE, most)
    for start in range(0, whole, _STRIPE):
        for lane in range(_STRIPE):
            value = values[start + lane]
            lanes[lane] = value if value > lanes[lane] else lanes[lane]
    for lane in range(_STRIPE):
        most = max(most, lanes[lane])
    for i in range(whole, len(values)):
        most = max(most, values[i])
    return most


@compiled.compiled
def is_bad(values: np.ndarray, most: np.float32) -> bool:
    """Whether nobody can draw from logits [N] whose largest is `most`: a NaN, +inf, or all -inf."""
    whole = len(values) // _STRIPE * _STRIPE
    lanes = np.zeros(_STRIPE, np.int32)  # NaNs
    for start in range(0, whole, _STRIPE):
        for lane in range(_STRIPE):
            lanes[lane] += values[start + lane] != values[start + lane]
    count = lanes.sum()
    for i in range(whole, len(values)):
        count += values[i] != values[i]
    return count != 0 or not np.isfinite(most)


@compiled.compiled
def first_of(values: np.ndarray, wanted: np.float32) -> int:
    """Where `wanted` stands first in float32 [N]; 0 if it does not."""
    start, whole = 0, len(values) // _STRIPE * _STRIPE
    while start < whole:
        count = 0
        for i in range(start, start + _STRIPE):
            count += values[i] == wanted
        if count:
            break
        start += _STRIPE
    for i in range(start, len(values)):
        if values[i] == wanted:
            return i
    return 0


@compiled.compiled
def power(x: np.float32) -> np.float32:
    """e**x for x of 0 or less, to the last few bits; never below 1e-38, which wins no race."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:
        scaled = _LEAST_EXPONENT
    whole = np.floor(scaled + _HALF_FLOAT)
    part = scaled - whole  # -.5 to .5, and 2**part by its series
    power = np.float32(1.5403530e-4)
    power = power * part + np.float32(1.3333558e-3)
    power = power * part + np.float32(9.6181291e-3)
    power = power * part + np.float32(5.5504109e-2)
    power = power * part + np.float32(2.4022651e-1)
    power = power * part + np.float32(6.9314718e-1)
    power = power * part + _ONE
    bits = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS)
    return power * bits.view(np.float32)


@compiled.compiled
def logarithm(x: np.float32) -> np.float32:
    """Of a normal number, to the last few bits."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32((bits >> _MANTISSA_BITS) - _BIAS)
    mantissa = np.int32((bits & _MANTISSA) | _ONE_BITS).view(np.float32)
    if mantissa > _SQRT_2:
        mantissa = mantissa * _HALF_FLOAT
        exponent = exponent + _ONE
    f = mantissa - _ONE  # -.3 to .42, and log(1 + f) by its series
    square = f * f
    series = np.float32(7.0376836e-2)
    series = series * f - np.float32(1.1514610e-1)
    series = series * f + np.float32(1.1676999e-1)
    series = series * f - np.float32(1.2420141e-1)
    series = series * f + np.float32(1.4249323e-1)
    series = series * f - np.float32(1.6668058e-1)
    series = series * f + np.float32(2.0000715e-1)
    series = series * f - np.float32(2.4999994e-1)
    series = series * f + np.float32(3.3333331e-1)
    rest = series * f * square + exponent * _LN_2_LOW - _HALF_FLOAT * square
    return f + rest + exponent * _LN_2_HIGH


@compiled.compiled
def exponential(bits: np.float32) -> np.float32:
    """-log1p(-v) for v = (bits + .5) * 2**-32, as `specserve.noise` has it."""
    v = (bits + _HALF_FLOAT) * _WORD
    if v > _MOST_UNIFORM:
        v = _MOST_UNIFORM
    left = _ONE - v
    off = left - _ONE  # -v but for what rounding took, which the quotient gives back
    return v if off == np.float32(0) else logarithm(left) * (v / off)


@compiled.compiled
def log_exponentials(
    positions: Words, sample_words: Words, purpose_words: Words, seeds: Words, out: np.ndarray
) -> None:
    """out float32 [R, V] = log E, E as `exponential` makes it of a row's words: all [R]."""
    num_rows, num_tokens = out.shape
    blocks = np.arange((num_tokens + 3) // 4).astype(np.uint64).reshape(1, -1)
    bits = np.empty((1, blocks.shape[1], 4), np.float32)
    for row in range(num_rows):
        one = slice(row, row + 1)
        keys = positions[one], sample_words[one], purpose_words[one], seeds[one]
        word_floats(blocks, keys[0], keys[1], keys[2], keys[3], bits)
        noise, logs = bits.reshape(-1), out[row]
        for token in range(num_tokens):
            logs[token] = logarithm(exponential(noise[token]))


@compiled.compiled
def race(
    logits: np.ndarray, temperatures: np.ndarray, keys: Words, purpose: int, winners: np.ndarray
) -> None:
    """winners int64 [R] = arg min of noise / exp((logit - largest) / temperature).

    logits float32 [R, V]; temperatures float32 [R]; keys [3, R]: positions, sample words, seeds.
    `NOBODY` wins where the row is bad.
    """
    num_rows, num_tokens = logits.shape
    blocks = np.arange((num_tokens + 3) // 4).astype(np.uint64).reshape(1, -1)
    purposes = np.full(1, purpose, np.uint64)
    bits = np.empty((1, blocks.shape[1], 4), np.float32)
    speeds = np.empty(num_tokens, np.float32)
    for row in range(num_rows):
        key = keys[:, row : row + 1].copy()
        word_floats(blocks, key[0], key[1], purposes, key[2], bits)
        noise, own = bits.reshape(-1), logits[row]
        most, temperature = largest(own), temperatures[row]
        if is_bad(own, most):
            winners[row] = NOBODY
            continue
        for token in range(num_tokens):
            weight = power((own[token] - most) / temperature)
            speeds[token] = -(exponential(noise[token]) / weight)
        winners[row] = first_of(speeds, largest(speeds))


@compiled.compiled
def likeliest(logits: np.ndarray, winners: np.ndarray) -> None:
    """winners int64 [R] = the first of the largest of float32 [R, V]; `NOBODY` in bad rows."""
    for row in range(len(logits)):
        own = logits[row]
        most = largest(own)
        winners[row] = NOBODY if is_bad(own, most) else first_of(own, most)


@functools.cache
def is_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("noise is made", word_floats, _run)


def _run() -> None:
    words = np.ones(2, np.uint64)
    out = np.empty((2, 3, 4), np.float32)
    word_floats(np.ones((1, 3), np.uint64), words, words, words, words, out)
    log_exponentials(words, words, words, words, np.empty((2, 5), np.float32))
    keys, winners = np.ones((3, 2), np.uint64), np.empty(2, np.int64)
    logits = np.ones((2, 5), np.float32)
    race(logits, np.ones(2, np.float32), keys, 0, winners)
    likeliest(logits, winners)
