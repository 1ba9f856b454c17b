"""Attention's products alone: what they find, and that they read no page number beyond the last."""

import subprocess
import sys

import pytest

from specserve.model.machine_code import host_machine

pytestmark = pytest.mark.skipif(host_machine() is None, reason="no compiled attention here")

_BESIDE_A_GUARD = """
import ctypes, math, mmap, sys
import numpy as np
from specserve.model.attention_code import Shape
from specserve.model.attention_kernels import AttentionKernels

# Page numbers end where memory ends: one more of them, and this process is no more.
memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert protect(start + 2 * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
end, random = start + 2 * mmap.PAGESIZE, np.random.default_rng(0)
pointer, number = ctypes.c_void_p, ctypes.c_int64
score_type = ctypes.CFUNCTYPE(None, *[pointer] * 3, *[number] * 3, pointer, number)
weigh_type = ctypes.CFUNCTYPE(None, pointer, number, pointer, pointer, *[number] * 3, pointer)
num_heads = 3

def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)

dim, tile = map(int, sys.argv[1:])
kernels = AttentionKernels(Shape(dim, tile, math.gcd(dim, 16), 12))
for page_size in (tile, 2 * tile, 8 * tile):
    for seen in (1, page_size, page_size + 1, 9 * page_size):
        num_pages, num_tiles = -(-seen // page_size), -(-seen // tile)
        pages = random.permutation(num_pages + 3)[:num_pages]
        (number * num_pages).from_address(end - 8 * num_pages)[:] = pages.tolist()
        keys = floats(num_pages + 3, num_heads, page_size // tile, dim, tile)[:, 1]
        values = floats(num_pages + 3, num_heads, page_size, dim)[:, 1]
        stride = num_heads * page_size * dim
        for size in (1, 5, 12):
            queries, weights = floats(size, dim), floats(size, seen)
            scores, found = floats(size, num_tiles * tile), floats(size, dim)
            score, weigh = kernels.by_size[:, size - 1].tolist()
            what = queries.ctypes.data, keys.ctypes.data, end - 8 * num_pages
            width, sizes = num_tiles * tile, (num_tiles, page_size // tile, stride)
            score_type(score)(*what, *sizes, scores.ctypes.data, width)
            expected = queries @ keys[pages].swapaxes(2, 3).reshape(-1, dim)[:width].T
            np.testing.assert_allclose(scores, expected, atol=1e-3)
            what = weights.ctypes.data, seen, values.ctypes.data, end - 8 * num_pages
            weigh_type(weigh)(*what, seen, page_size, stride, found.ctypes.data)
            expected = weights @ values[pages].reshape(-1, dim)[:seen]
            np.testing.assert_allclose(found, expected, atol=1e-3)
"""


@pytest.mark.parametrize(("dim", "tile"), [(32, 16), (8, 1), (20, 4), (128, 16)])
def test_pages_are_read_as_they_lie_and_none_beyond_the_last(dim, tile):
    words = [sys.executable, "-c", _BESIDE_A_GUARD, str(dim), str(tile)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
