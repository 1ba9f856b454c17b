"""A planted bug: one edit of shipped code, and the tests that are there to find it."""

import ast
import enum
import textwrap
from dataclasses import dataclass
from pathlib import Path


class Way(enum.StrEnum):
    """How the code that a plant breaks is computed, and in which mode it serves."""

    TORCH = "torch"
    COMPILED = "compiled"
    CAPTURED = "captured"
    SYNC = "sync"
    ASYNC = "async"


class Moved(Exception):
    """The code that a plant breaks is no longer where the plant says."""


@dataclass(frozen=True)
class Plant:
    """In `symbol` of `file`, `was` becomes `becomes`.

    `symbol` is a qualified name ("DraftSlots.extend", or a constant), and `was` occurs
    in it once. Both are pieces of a line, or, if one has a line break, whole lines without the
    indentation that they have in common.
    """

    name: str
    file: str
    symbol: str
    was: str
    becomes: str
    tests: tuple[str, ...]  # names of pytest; each passes without the plant, one fails with it
    breaks: str  # what a user would see
    ways: frozenset[Way]

    def applied(self, root: Path) -> str:
        """The text of `file` with the bug in it. Raises `Moved`."""
        path = root / self.file
        if not path.is_file():
            raise Moved(f"plant {self.name!r}: there is no file {self.file}")
        source = path.read_text(encoding="utf-8")
        start, end = self._span(source)
        lines = source.splitlines(keepends=True)
        inside = "".join(lines[start:end])
        planted = "".join(lines[:start]) + self._edited(inside) + "".join(lines[end:])
        try:
            ast.parse(planted)
        except SyntaxError as error:
            raise Moved(
                f"plant {self.name!r}: {self.file} does not parse with it: {error}"
            ) from None
        return planted

    def _span(self, source: str) -> tuple[int, int]:
        """Lines of the symbol, first and one behind the last."""
        nodes = _symbols(ast.parse(source), self.symbol.split("."))
        # A function that is bound anew to what compiles it is the one that is written there.
        nodes = [node for node in nodes if not isinstance(node, ast.Assign)] or nodes
        if len(nodes) != 1:
            raise Moved(
                f"plant {self.name!r}: {self.file} has {len(nodes)} symbols {self.symbol}, not one"
            )
        (node,) = nodes
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        assert node.end_lineno is not None
        return first - 1, node.end_lineno

    def _edited(self, inside: str) -> str:
        if "\n" not in self.was and "\n" not in self.becomes:
            self._check_count(inside.count(self.was))
            return inside.replace(self.was, self.becomes)
        was = _lines(self.was)
        lines = inside.splitlines()
        places = [
            place
            for place in range(len(lines) - len(was) + 1)
            if _lines("\n".join(lines[place : place + len(was)])) == was
        ]
        self._check_count(len(places))
        (place,) = places
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        becomes = textwrap.indent("\n".join(_lines(self.becomes)), indent).splitlines()
        return "\n".join(lines[:place] + becomes + lines[place + len(was) :]) + "\n"

    def _check_count(self, count: int) -> None:
        if count != 1:
            raise Moved(
                f"plant {self.name!r}: {self.symbol} in {self.file} has what it breaks "
                f"{count} times, not once: {self.was.strip()!r}"
            )


def _lines(text: str) -> list[str]:
    """Without the indentation of the first line, and without blank ends."""
    return textwrap.dedent(text.strip("\n")).rstrip().split("\n")


def _symbols(tree: ast.AST, path: list[str]) -> list[ast.stmt]:
    """Definitions of this qualified name, functions within functions included."""
    name, *rest = path
    found = [node for node in _defined_in(tree) if name in _names_of(node)]
    return [each for node in found for each in _symbols(node, rest)] if rest else found


def _defined_in(tree: ast.AST) -> list[ast.stmt]:
    """What is defined in a body, under whatever `if` or `with`."""
    found: list[ast.stmt] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and _names_of(node):
            found.append(node)
        else:
            found += _defined_in(node)
    return found


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
