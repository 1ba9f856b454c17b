# pyright: strict
"""The folder that a long command writes to at its end, made and tried at its beginning."""

import tempfile
from pathlib import Path

from specserve.errors import InvalidField


def make_output_folder(folder: Path, flag: str) -> None:
    """Make `folder`, if it is not there; raises InvalidField naming `flag` if it takes no file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidField(flag, f"{folder}: {error.strerror}") from error
