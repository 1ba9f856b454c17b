# pyright: strict
"""What a service has measured, kept from one to the next: small JSON files below the cache folder.

That is `SPECSERVE_CACHE`, or `specserve` in `XDG_CACHE_HOME`, or `~/.cache/specserve`. A file says
what it was measured for, and is of no use once any of that has changed.
"""

import hashlib
import importlib.metadata
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from specserve import __version__
from specserve.errors import Unavailable
from specserve.settings.hardware import Hardware

FOLDER_VARIABLE = "SPECSERVE_CACHE"
_COMPUTING = ("torch", "numba", "llvmlite", "triton")  # packages that forwards run on

Count = Annotated[int, Meta(ge=0, le=2**40)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file."""

    format: int  # of which a record has the latest by default
    made_for: dict[str, str]  # all that the times depend on, by name


Record = TypeVar("Record", bound=Kept)


class KeptFile(Generic[Record]):
    """One record.

    No trouble with it keeps a process from starting: what cannot be read is measured again, and
    what cannot be written is said.
    """

    def __init__(
        self,
        record: type[Record],
        what: str,
        *,
        folder: str,
        identity: Mapping[str, str],
        made_for: Mapping[str, str],
    ) -> None:
        """`what` is measured, in words; `identity` tells files apart, `made_for` has all of it."""
        self.made_for = {**identity, **made_for}
        self._record, self._what = record, what
        self._format: int = msgspec.structs.fields(record)[0].default
        name = msgspec.json.encode(sorted(identity.items()))
        digest = hashlib.sha256(name).hexdigest()[:16]
        self.path = cache_folder() / folder / f"{digest}.json"

    def read(self) -> Record | None:
        """What is known; None where nothing is, or of something else."""
        try:
            record = self._decoded()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is of no use, %s are timed again: %s", self.path, self._what, error)
            return None
        changed = [] if record is None else self._changed(record)
        if changed:
            log.info("%s are timed again: what has changed is %s", self._what, ", ".join(changed))
        return None if changed else record

    def peek(self) -> Record | None:
        """The same without a word, for who measures nothing anew."""
        try:
            record = self._decoded()
        except (OSError, ValueError, RecursionError):
            return None
        return None if record is None or self._changed(record) else record

    def _decoded(self) -> Record | None:
        """None where there is no file. Raises what reading it raises."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._record)
        except FileNotFoundError:
            return None

    def _changed(self, record: Record) -> list[str]:
        """What `record` was measured for and is not so now."""
        if record.format != self._format:
            return ["the file's format"]
        return sorted(
            name
            for name in record.made_for.keys() | self.made_for.keys()
            if record.made_for.get(name) != self.made_for.get(name)
        )

    def write(self, record: Record) -> None:
        """Keep it for the next service; whole, or not at all."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
                file = Path(folder, self.path.name)
                file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
                file.replace(self.path)
        except OSError as error:
            log.warning("what %s take is not kept for the next start: %s", self._what, error)

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


def computed_by(device: str, hardware: Hardware) -> dict[str, str]:
    """What all times depend on: the machine, `device` of it, and what computes there."""
    names = [each.name for each in hardware.cuda_devices if device == f"cuda:{each.index}"]
    packages = {name: _version(name) for name in _COMPUTING}
    return {
        "hardware": ", ".join([hardware.cpu_name, f"{os.cpu_count()} cores", *names]),
        "specserve": __version__,
        **{name: version for name, version in packages.items() if version},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def mark_of(model: Path) -> str:
    """Sizes and times of change: enough to notice another model of the same name."""
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    known = [(file.name, file.stat()) for file in files if file.is_file()]
    marks = [(name, each.st_size, each.st_mtime_ns) for name, each in known]
    return hashlib.sha256(msgspec.json.encode(marks)).hexdigest()[:16]
