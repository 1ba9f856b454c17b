"""What a compiled function is made of: its file, and all of ours that this one imports in the end.

numba keeps what it compiled for the function's own file and for what the function encloses. One
that encloses `key_of(__file__)`, and reads it, is compiled anew when any of these files changes.
"""

import ast
import functools
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("draft_node", "specserve", "target_node")
_ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def key_of(file: str) -> int:
    """Of the sources of this one; never 0, so that it can stand as a condition."""
    parts = (path.read_bytes() for path in sources_of(Path(file).resolve()))
    return zlib.crc32(b"".join(parts)) | 1


def sources_of(file: Path) -> list[Path]:
    """`file` and every file of ours that it imports, that these import, and so on."""
    found, left = set[Path](), [file]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _imported(path)
    return sorted(found)


@functools.cache
def _imported(file: Path) -> list[Path]:
    names = _names(ast.parse(file.read_bytes()))
    ours = {name for name in names if name.partition(".")[0] in PACKAGES}
    paths = (_ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in ours)
    return [path for path in paths if path.is_file()]


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module  # and perhaps modules of this package:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
