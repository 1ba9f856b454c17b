# pyright: strict
"""A process that makes a context on every GPU it sees, to find out whether NVIDIA MPS serves it.

    python -m specserve.processes.mps_trial

Ends with status 0, or says which call of the driver failed. Needs no torch, which takes seconds.
"""

import ctypes
import sys


def main() -> int:
    """The status."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _failed("there is no CUDA driver")
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    if error := driver.cuInit(0):
        return _failed(f"cuInit returned {error}")
    if error := driver.cuDeviceGetCount(ctypes.byref(count)):
        return _failed(f"cuDeviceGetCount returned {error}")
    for index in range(count.value):
        if error := driver.cuDeviceGet(ctypes.byref(device), index):
            return _failed(f"cuDeviceGet returned {error}")
        if error := driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return _failed(f"cuDevicePrimaryCtxRetain returned {error}")
    return 0


def _failed(problem: str) -> int:
    sys.stdout.write(f"{problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
