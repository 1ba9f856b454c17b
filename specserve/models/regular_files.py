# pyright: strict
"""Reading the small files of a model's folder, which may be links to anything.

A device has no end, and a pipe nobody at the other one: neither is opened.
"""

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 256 * 1024 * 1024  # the largest published tokenizers have some 35 MB


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
