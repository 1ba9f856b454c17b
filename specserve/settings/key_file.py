# pyright: strict
"""Files of API keys: one key a line, a name before it where it has one.

    # Two keys of one name are one tenant: both are good while clients change over.
    alice 3f9c0d5e8b7a41d2a6c4
    alice 77e1b0c2d94f4a0db1e8
    c2b4f6a8d0e24f1a9b3c

Blank lines and lines that begin with # say nothing. A key has printable ASCII characters and no
space. Knows files; what a key is good for is the API's business.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from specserve.errors import InvalidField

MIN_KEY_CHARS = 16
_MAX_FILE_BYTES = 2**20
_MAX_NAME_CHARS = 64
# A group that may read is left alone: it is how secrets are mounted for services.
_EXPOSED = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


class ApiKey(NamedTuple):
    """One line of a file. `name` is empty where the line has none."""

    name: str
    key: str
    line: int  # counts from 1

    @property
    def shown(self) -> str:
        """For messages: who it is, and nothing of the key."""
        return repr(self.name) if self.name else f"of line {self.line}"

    def __repr__(self) -> str:  # so that no log and no traceback has the key
        return f"ApiKey({self.shown})"


def read_keys(path: Path, setting: str) -> list[ApiKey]:
    """All keys of a file. Raises InvalidField naming `setting`, and never quotes a key."""
    try:
        with path.open("rb") as file:
            require_private(file.fileno(), path, setting)
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidField(setting, f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise InvalidField(setting, f"{path} has more than {_MAX_FILE_BYTES} bytes")
    lines = content.decode("ascii", errors="replace").splitlines()
    found = [
        _key_of(line.split(), number, f"{path}, line {number}", setting)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not found:
        problem = f"{path} has no key; write one a line, such as `openssl rand -hex 24` prints"
        raise InvalidField(setting, problem)
    _refuse_shared(found, path, setting)
    return found


def require_private(fd: int, path: Path, setting: str) -> None:
    """Raise InvalidField for an open file with a secret in it that strangers can read or change."""
    if os.fstat(fd).st_mode & _EXPOSED:
        problem = f"{path} can be read or changed by others; type: chmod 600 {path}"
        raise InvalidField(setting, problem)


def _key_of(words: list[str], number: int, place: str, setting: str) -> ApiKey:
    *names, key = words
    if len(names) > 1:
        raise InvalidField(setting, f"{place} has {len(words)} words; write KEY, or NAME KEY")
    if len(key) < MIN_KEY_CHARS:
        problem = f"{place} has a key of {len(key)} characters; the least is {MIN_KEY_CHARS}"
        raise InvalidField(setting, problem)
    name = names[0] if names else ""
    if not (key + name).isascii() or not (key + name).isprintable():
        raise InvalidField(setting, f"{place} has a character that is not printable ASCII")
    if len(name) > _MAX_NAME_CHARS:
        problem = f"{place} has a name of {len(name)} characters; the limit is {_MAX_NAME_CHARS}"
        raise InvalidField(setting, problem)
    return ApiKey(name, key, number)


def _refuse_shared(found: list[ApiKey], path: Path, setting: str) -> None:
    """One key stands for one tenant."""
    lines: dict[str, int] = {}
    for each in found:
        if (first := lines.setdefault(each.key, each.line)) != each.line:
            raise InvalidField(setting, f"{path} has one key twice, in lines {first}, {each.line}")
