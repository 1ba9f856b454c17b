# pyright: strict
"""What this machine has: cores, memory, CUDA devices. Asks the kernel and the driver, not torch.

Decides nothing: `specserve.settings.resolve` does, from the `Hardware` record.
"""

import ctypes
import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One visible CUDA device."""

    index: int
    name: str
    memory: int  # bytes in all


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the machine, as far as this process may use it."""

    cores: tuple[int, ...]  # ids this process may run on
    cpu_name: str
    available_memory: int  # bytes of host memory a new process can get
    cuda_devices: tuple[CudaDevice, ...] = ()


def probe() -> Hardware:
    """Look at the machine once; takes milliseconds without a CUDA driver."""
    return Hardware(
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cpu_name=_cpu_name(),
        available_memory=_available_memory(),
        cuda_devices=_cuda_devices() if _torch_has_cuda() else (),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _available_memory() -> int:
    """MemAvailable, or what the control group leaves of it."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or "max"
        return available
    return max(0, min(available, limit - used))


def _torch_has_cuda() -> bool:
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


def _cuda_devices() -> tuple[CudaDevice, ...]:
    """The driver's list, which honours CUDA_VISIBLE_DEVICES; makes no context on any device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_cuda_device(driver, index) for index in range(count.value))


def _cuda_device(driver: ctypes.CDLL, index: int) -> CudaDevice:
    handle, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    return CudaDevice(index=index, name=name.value.decode(), memory=memory.value)
