"""Philox4x32-10 of many counters, compiled: `specserve.noise.philox_floats` for a CPU, bit for bit.

Integers, and one rounding to float32, so no bit depends on who computes them.
"""

import functools

import numpy as np
import torch
from torch import Tensor

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


def philox_floats(
    blocks: Tensor, positions: Tensor, sample_words: Tensor, purpose_words: Tensor, seeds: Tensor
) -> Tensor:
    """As `specserve.noise.philox_floats`, of tensors on a CPU."""
    words = [_words(each) for each in (blocks, positions, sample_words, purpose_words, seeds)]
    bits = np.empty((len(seeds), blocks.shape[1], 4), np.float32)
    word_floats(words[0], words[1], words[2], words[3], words[4], bits)
    return torch.from_numpy(bits)


def _words(lanes: Tensor) -> Words:
    return np.ascontiguousarray(lanes.numpy()).view(np.uint64)


@functools.cache
def register() -> bool:
    """Let this process make noise on CPUs by the compiled function; False where there is no numba.

    Compiles it, unless that was done before.
    """
    if not compiled.works("noise is made", word_floats, _run):
        return False
    if _REGISTERED:
        return True
    library = torch.library.Library("specserve", "IMPL")
    library.impl("philox_floats", philox_floats, "CPU")
    _REGISTERED.append(library)
    return True


_REGISTERED: list[torch.library.Library] = []  # an implementation goes with its library


def _run() -> None:
    words = np.ones(2, np.uint64)
    out = np.empty((2, 3, 4), np.float32)
    word_floats(np.ones((1, 3), np.uint64), words, words, words, words, out)
