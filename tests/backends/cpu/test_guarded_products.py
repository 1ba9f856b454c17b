"""Products read and write nothing beside their inputs, weights and outputs."""

import subprocess
import sys

import pytest

from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.machine_code import host_machine
from specserve.backends.cpu.row_kernels import row_kernels

pytestmark = pytest.mark.skipif(host_machine() is None, reason="no compiled products here")
STORAGES = [storage for storage in Storage if row_kernels(storage) is not None]

_BETWEEN_GUARDS = """
import ctypes, math, mmap, sys
import torch
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.row_kernels import row_kernels

PAGE = mmap.PAGESIZE
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []

def guarded(*shape, dtype=torch.float32):
    # Ends where memory ends, or begins where it begins: one step further, and this process is gone.
    size = math.prod(shape) * dtype.itemsize
    whole = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, whole + 2 * PAGE)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + PAGE + whole):
        assert protect(guard, PAGE, 0) == 0
    offset = PAGE + (whole - size if at_end else 0)
    numbers = torch.frombuffer(memory, dtype=torch.uint8)[offset : offset + size]
    return numbers.view(dtype).view(shape)

usual = torch.empty
for name in sys.argv[1:]:
    sys.stderr.write(name + "\\n")  # the last one is whose products go too far
    sys.stderr.flush()
    kernels = row_kernels(Storage[name])
    for in_size in (64, 1088):
        weight = torch.randn(100, in_size).bfloat16().float()
        packed, x = kernels.pack(weight), torch.randn(300, in_size)
        for num_rows in (1, 2, 7, 12, 13, 16, 17, 31, 33, 34, 40, 47, 65, 130, 300):
            expected = kernels.product(x[:num_rows], packed)
            for at_end in (True, False):
                own = guarded(num_rows, in_size).copy_(x[:num_rows])
                own_packed = guarded(*packed.shape, dtype=packed.dtype).copy_(packed)
                torch.empty = guarded  # what a product returns
                found = kernels.product(own, own_packed)
                torch.empty = usual
                assert torch.equal(found, expected), (in_size, num_rows)
                del own, own_packed, found
print(len(kept))
"""


@pytest.mark.slow
def test_nothing_beside_is_read_or_written():
    """One process for all storages: to start takes longer than to multiply."""
    names = [storage.name for storage in STORAGES]
    words = [sys.executable, "-c", _BETWEEN_GUARDS, *names]
    found = subprocess.run(words, capture_output=True, text=True, timeout=360, check=False)
    assert found.returncode == 0, found.stderr or found.returncode
    assert found.stderr.split() == names
    assert int(found.stdout) == len(names) * 2 * 15 * 2 * 3
