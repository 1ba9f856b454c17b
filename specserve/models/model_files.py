# pyright: strict
"""The files of a model's folder: small ones that are read, and those that never are.

They may be links to anything. A device has no end, and a pipe nobody at the other one: neither is
opened.
"""

import errno
import os
import stat
from pathlib import Path

from specserve.errors import Unsupported

MOST_BYTES = 256 * 1024 * 1024  # the largest published tokenizers have some 35 MB
_PICKLES = (".bin", ".pt", ".pth")


def read_regular(path: Path) -> bytes:
    """All of it. Raises OSError as `Path.read_bytes`, and for what is no file or too large."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, and no file", str(path))
    if found.st_size > MOST_BYTES:
        problem = f"it has {found.st_size} bytes; the limit is {MOST_BYTES}"
        raise OSError(errno.EFBIG, problem, str(path))
    return path.read_bytes()


def refuse_pickles(folder: Path) -> None:
    """Raise `Unsupported` where a folder's weights are pickles alone."""
    if (problem := only_pickles(folder)) is not None:
        raise Unsupported(f"{folder}: {problem}")


def only_pickles(folder: Path) -> str | None:
    """What is wrong with a folder whose weights are pickles alone, and what to do; else None."""
    if any(folder.glob("*.safetensors")):
        return None
    names = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLES)
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"only pickled weights ({names[0]}{more}), which are never read because they can run code; "
        "convert them to safetensors, as model.safetensors beside config.json"
    )
