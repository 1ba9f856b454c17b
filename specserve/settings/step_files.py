# pyright: strict
"""What forwards of a model take on a machine, kept from one service to the next.

One small JSON file for each model, topology and dtype, below the cache folder: `SPECSERVE_CACHE`,
or `specserve` in `XDG_CACHE_HOME`, or `~/.cache/specserve`. It says what it was measured for, and
is of no use once any of that has changed.
"""

import hashlib
import importlib.metadata
import logging
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from specserve import __version__
from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig
from specserve.settings.hardware import Hardware

FOLDER_VARIABLE = "SPECSERVE_CACHE"
_FORMAT = 2  # of the file
_COMPUTING = ("torch", "numba", "llvmlite", "triton")  # packages that forwards run on

log = logging.getLogger(__name__)


_Count = Annotated[int, Meta(ge=0, le=2**40)]
_Seconds = Annotated[float, Meta(ge=0, le=1e6)]


class StepCell(msgspec.Struct, frozen=True):
    """Forwards of one number of tokens."""

    num_tokens: Annotated[int, Meta(ge=1, le=2**24)]
    seconds: _Seconds  # without what rows and keys add
    num_takes: _Count  # rounds that have run so, those of the profile included


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file."""

    format: int = _FORMAT
    made_for: dict[str, str]  # all that the times depend on, by name
    cells: Annotated[list[StepCell], Meta(min_length=1)]  # by tokens, ascending
    row_s: _Seconds  # that a row adds, ...
    key_s: _Seconds  # ... and a key that is attended to
    num_rounds: _Count = 0  # that have refreshed it
    median_error: float | None = None  # of predictions of the latest of them, as a share


class StepFile:
    """Where the times of one configuration are kept.

    No trouble with it keeps a service from starting: what cannot be read is measured again, and
    what cannot be written is said. Make it before the model is loaded: its files may change later.
    """

    def __init__(self, config: ResolvedConfig, hardware: Hardware) -> None:
        self.made_for = _made_for(config, hardware)
        name = msgspec.json.encode(sorted(_identity(config).items()))
        digest = hashlib.sha256(name).hexdigest()[:16]
        self.path = cache_folder() / "steps" / f"{digest}.json"

    def read(self) -> StepRecord | None:
        """What is known; None where nothing is, or of something else."""
        try:
            record = msgspec.json.decode(self.path.read_bytes(), type=StepRecord)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is of no use, forwards are timed again: %s", self.path, error)
            return None
        changed = sorted(
            name
            for name in record.made_for.keys() | self.made_for.keys()
            if record.made_for.get(name) != self.made_for.get(name)
        )
        if record.format != _FORMAT:
            changed = ["the file's format"]
        if changed:
            log.info("forwards are timed again: what has changed is %s", ", ".join(changed))
            return None
        return record

    def write(self, record: StepRecord) -> None:
        """Keep it for the next service; whole, or not at all."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
                file = Path(folder, self.path.name)
                file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
                file.replace(self.path)
        except OSError as error:
            log.warning("what forwards take is not kept for the next start: %s", error)

    def forget(self) -> None:
        """The next service measures again. Raises Unavailable where it is not ours to remove."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be removed: {error.strerror}") from error


def cache_folder() -> Path:
    """Where this installation keeps what it can make again."""
    named, base = os.environ.get(FOLDER_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path.home() / ".cache") / "specserve"
    except RuntimeError:  # a user without a home, as in containers
        return Path(tempfile.gettempdir(), f"specserve-{os.getuid()}")


def _identity(config: ResolvedConfig) -> dict[str, str]:
    """What files are told apart by."""
    topology, model = config.topology, config.model
    return {
        "model": model.target or "",
        "ballast": model.ballast or "none",
        "dtype": f"{model.dtype}, keys and values in {config.engine.kv_dtype}",
        "topology": f"{topology.topology} on {topology.device}, threads {topology.threads}",
        "engine": f"deterministic {config.engine.deterministic}, "
        f"cuda_graphs {config.engine.cuda_graphs}, oversubscribed {config.oversubscribed}",
    }


def _made_for(config: ResolvedConfig, hardware: Hardware) -> dict[str, str]:
    device = config.placement("target").device
    names = [each.name for each in hardware.cuda_devices if device == f"cuda:{each.index}"]
    packages = {name: _version(name) for name in _COMPUTING}
    engine = config.engine
    return {
        **_identity(config),
        "model's files": _files(Path(config.model.target or "")),
        "hardware": ", ".join([hardware.cpu_name, f"{os.cpu_count()} cores", *names]),
        "limits": f"{engine.max_batch_tokens} tokens and {engine.max_batch_rows} rows a forward, "
        f"{config.model.max_model_len} tokens a row",
        "specserve": __version__,
        **{name: version for name, version in packages.items() if version},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _files(target: Path) -> str:
    """Sizes and times of change: enough to notice another model of the same name."""
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    known = [(file.name, file.stat()) for file in files if file.is_file()]
    marks = [(name, each.st_size, each.st_mtime_ns) for name, each in known]
    return hashlib.sha256(msgspec.json.encode(marks)).hexdigest()[:16]
