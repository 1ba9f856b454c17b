"""What a compiled function is made of: its file, and all of ours that this one imports in the end.

numba keeps what it compiled for the function's own file and for what the function encloses. One
that encloses `key_of(__file__)`, and reads it, is compiled anew when any of these files changes.

`python -m specserve.backends.cpu.compiled_sources` names them all, for `make`.
"""

import ast
import functools
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("draft_node", "specserve", "target_node")
_ROOT = Path(__file__).resolve().parents[3]


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


def all_sources() -> list[Path]:
    """Of every function that is compiled, from the root of the project."""
    files = (path for package in PACKAGES for path in (_ROOT / package).rglob("*.py"))
    compiling = [path for path in files if "compiled.compiled" in path.read_text(encoding="utf-8")]
    found = {source for path in compiling for source in sources_of(path)}
    return sorted(path.relative_to(_ROOT) for path in found)


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in all_sources())
