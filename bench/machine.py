# pyright: strict
"""What this was measured on: processor, load, versions, commit, date."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import msgspec
import torch

from specserve import __version__
from specserve.settings.hardware import probe

_PACKAGES = ("torch", "transformers", "grpcio", "pyzmq", "msgspec", "numpy", "numba")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; `load_average` is the kernel's of 1, 5 and 15 minutes."""

    cpu: str
    num_cores: int
    gpus: tuple[str, ...] = ()
    load_average: tuple[float, float, float]
    platform: str
    versions: dict[str, str]
    commit: str
    date: str

    @property
    def line(self) -> str:
        """For reports."""
        load = " ".join(f"{value:.2f}" for value in self.load_average)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        gpus = "".join(f"{name}, " for name in self.gpus)
        return (
            f"{gpus}{self.cpu}, {self.num_cores} cores, load average before the run {load}; "
            f"{self.platform}; {self.date}; commit {self.commit}; {versions}"
        )


def describe_machine() -> Machine:
    """Look now."""
    hardware = probe()
    versions = {"specserve": __version__, "python": platform.python_version()}
    versions |= {package: _version(package) for package in _PACKAGES}
    return Machine(
        # Vector units double the speed of a core, and the name does not tell them.
        cpu=f"{hardware.cpu_name} ({torch.backends.cpu.get_cpu_capability()})",
        num_cores=len(hardware.cores),
        gpus=tuple(device.name for device in hardware.cuda_devices),
        load_average=os.getloadavg(),
        platform=platform.platform(),
        versions=versions,
        commit=_commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _commit() -> str:
    """The checked-out commit, marked when the files differ from it; "unknown" outside of git."""
    root = Path(__file__).parent.parent
    try:
        return subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
