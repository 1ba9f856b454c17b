# pyright: strict
"""Folders that commands make: the private one of a launch, and those that results go to.

The private one holds the resolved configuration, sockets and rendezvous files. It goes away with
the launch. A launch killed by SIGKILL leaves its folder; the next one removes it, recognising it by
a lock that nobody holds. Only folders of this user and this name are seen.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from specserve.errors import InvalidField, Unsupported

_PREFIX = "specserve-"
_LOCK = "lock"
# sockaddr_un holds 108 bytes; leave room for "/" and the socket's own name.
_MAX_PATH_BYTES = 80


def runtime_root() -> Path:
    """Where run folders go: per user where the system has such a place."""
    root = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(root) if root and os.access(root, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def run_dir(root: Path) -> Generator[Path]:
    """A fresh 0700 folder under `root`. Raises Unsupported when no socket path would fit in it."""
    _remove_abandoned(root)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))  # mkdtemp makes it 0700
        try:
            if len(os.fsencode(folder)) > _MAX_PATH_BYTES:
                raise Unsupported(
                    f"{root} (XDG_RUNTIME_DIR or TMPDIR) is too long for socket paths "
                    f"({_MAX_PATH_BYTES} bytes with the folder's name)"
                )
            with (folder / _LOCK).open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Before it was locked, another launch may have taken the folder for abandoned.
                if os.fstat(lock.fileno()).st_nlink:
                    yield folder
                    return
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:  # held, vanishing, or not one of ours
            continue


def make_output_folder(folder: Path, flag: str) -> None:
    """Make `folder`, if it is not there; raises InvalidField naming `flag` if it takes no file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidField(flag, f"{folder}: {error.strerror}") from error
