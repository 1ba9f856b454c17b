"""Philox4x32-10 of many counters, compiled: the words of `specserve.noise`, bit for bit.

Integers, and one rounding to float32, so no bit depends on who computes them.
"""

import functools

import numpy as np

from specserve import compiled

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
            out[row, place, 0], out[row, place, 1] = np.float32(a), np.float32(b)
            out[row, place, 2], out[row, place, 3] = np.float32(c), np.float32(d)


@functools.cache
def is_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("noise is made", word_floats, _run)


def _run() -> None:
    words = np.ones(2, np.uint64)
    out = np.empty((2, 3, 4), np.float32)
    word_floats(np.ones((1, 3), np.uint64), words, words, words, words, out)
