"""Attention's products alone: what they find, and that they read no page number beyond the last."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
import torch

from specserve.backends.cpu.forward import attention_kernels
from specserve.backends.cpu.machine_code import host_machine

pytestmark = pytest.mark.skipif(host_machine() is None, reason="no compiled attention here")

_BESIDE_A_GUARD = """
import ctypes, math, mmap, sys
import numpy as np
from specserve.backends.cpu.codegen.attention_code import Shape
from specserve.backends.cpu.forward import AttentionKernels

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

def kept(*shape):
    # As floats, and as they are kept.
    bits = floats(*shape).view(np.uint32) & (0xFFFFFFFF if num_bytes == 4 else 0xFFFF0000)
    numbers = bits.view(np.float32)
    return numbers, numbers if num_bytes == 4 else (bits >> 16).astype(np.uint16)

for words in sys.argv[1:]:
    sys.stderr.write(words + "\\n")  # the last one is whose products read too far
    sys.stderr.flush()
    dim, tile, num_bytes = map(int, words.split(","))
    kernels = AttentionKernels(Shape(dim, tile, math.gcd(dim, 16), 12, num_bytes))
    for page_size in (tile, 2 * tile, 8 * tile):
        for seen in (1, page_size, page_size + 1, 9 * page_size):
            num_pages, num_tiles = -(-seen // page_size), -(-seen // tile)
            pages = random.permutation(num_pages + 3)[:num_pages]
            (number * num_pages).from_address(end - 8 * num_pages)[:] = pages.tolist()
            keys, kept_keys = kept(num_pages + 3, num_heads, page_size // tile, dim, tile)
            values, kept_values = kept(num_pages + 3, num_heads, page_size, dim)
            keys, kept_keys, values, kept_values = (
                array[:, 1] for array in (keys, kept_keys, values, kept_values)
            )
            stride = num_heads * page_size * dim
            for size in (1, 5, 12):
                queries, weights = floats(size, dim), floats(size, seen)
                scores, found = floats(size, num_tiles * tile), floats(size, dim)
                score, weigh = kernels.by_size[:, size - 1].tolist()
                what = queries.ctypes.data, kept_keys.ctypes.data, end - 8 * num_pages
                width, sizes = num_tiles * tile, (num_tiles, page_size // tile, stride)
                score_type(score)(*what, *sizes, scores.ctypes.data, width)
                expected = queries @ keys[pages].swapaxes(2, 3).reshape(-1, dim)[:width].T
                np.testing.assert_allclose(scores, expected, atol=1e-3)
                what = weights.ctypes.data, seen, kept_values.ctypes.data, end - 8 * num_pages
                weigh_type(weigh)(*what, seen, page_size, stride, found.ctypes.data)
                expected = weights @ values[pages].reshape(-1, dim)[:seen]
                np.testing.assert_allclose(found, expected, atol=1e-3)
"""


_SHAPES = [(32, 16), (8, 1), (20, 4), (128, 16)]


@pytest.mark.slow
def test_pages_are_read_as_they_lie_and_none_beyond_the_last():
    """One process for all shapes: to start takes longer than to read."""
    shapes = [f"{dim},{tile},{num_bytes}" for dim, tile in _SHAPES for num_bytes in (4, 2)]
    words = [sys.executable, "-c", _BESIDE_A_GUARD, *shapes]
    found = subprocess.run(words, capture_output=True, text=True, timeout=480, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stderr.split() == shapes


HALVES = (0x7FFF, 0x8000, 0x8001)
# Halves between two numbers of bfloat16 and beside them, the largest, the smallest, and no numbers.
EDGES = [
    *(upper | lower for upper in (0x3F800000, 0x3F810000, 0xC2FF0000) for lower in HALVES),
    *(0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0xFF800000),
    *(0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFC00000),
    *(0, 0x80000000, 1, *HALVES, 0x807FFFFF, 0x00018000, 0x00028000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "tile"), [(32, 16), (8, 1), (20, 4), (37, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_has_the_bits_that_torch_rounds_to(dim, tile, dtype):
    kernels = attention_kernels(dim, tile, dtype.itemsize)
    random = np.random.default_rng(0).integers(0, 1 << 32, 200 * dim, dtype=np.uint32)
    bits = np.concatenate([np.array(EDGES * dim, dtype=np.uint32), random]).reshape(-1, dim)
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    for x in torch.from_numpy(bits.view(np.int32)).view(torch.float32):
        expected = x.to(dtype).view(integers)
        if dtype != torch.float32:  # torch has several NaNs, by its vectors
            expected[x.isnan()] = 0x7FC0
        value = torch.full((dim + 1,), 7, dtype=integers)
        keep(kernels.keep_value)(x.data_ptr(), value.data_ptr())
        assert value.tolist() == [*expected.tolist(), 7]
        key = torch.full((dim, tile), 7, dtype=integers)
        keep(kernels.keep_key)(x.data_ptr(), key[0, tile - 1].data_ptr())
        assert torch.equal(key[:, -1], expected)
        assert (key[:, :-1] == 7).all()
