"""docs/errors.md: what of its tables follows from the code, and whether every error is in one.

Causes and advice are written by hand on the page. The generator fills in by what status errors are
told, and says which families have no row and which rows no error.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from specserve.api.http.refusals import _STATUSES as HTTP_STATUSES
from specserve.errors import SpecserveError
from tests.docs.literal_texts import GAP
from tests.docs.raised import ROOT, Family, classes, families

PAGE = ROOT / "docs" / "errors.md"
_ROW = re.compile(r"^\| .* \|$")
_IN_BACKTICKS = re.compile(r"`([^`]+)`")
_STATUS_HEAD = "| gRPC | HTTP |"
_FAMILY_HEAD = "| it begins with | told as |"
_OF_COMMANDS = frozenset({"INVALID_ARGUMENT", "FAILED_PRECONDITION"})  # exit code 2, else 1
# Sections of what ends a command, by the beginning of their headings.
_COMMANDS = ("Settings", "Models", "A service", "Commands", "Training")


class Row(NamedTuple):
    """Of a table of families."""

    line: int
    keys: tuple[str, ...]  # beginnings of errors
    scopes: tuple[str, ...]  # modules and folders, for errors whose beginning nobody knows
    is_of_commands: bool
    advice: tuple[str, ...]  # the cells that are written by hand


def cells_of(line: str) -> list[str]:
    """Of a row; a bar in backticks is written as \\|."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows_of(text: str) -> list[Row]:
    """Of all tables of families, in order."""
    found: list[Row] = []
    section, is_within = "", False
    for number, line in enumerate(text.splitlines()):
        if line.startswith("## "):
            section = line[3:]
        if line.startswith(_FAMILY_HEAD):
            is_within = True
        elif not _ROW.match(line):
            is_within = is_within and line.startswith("|")
        elif is_within:
            first, _, *advice = cells_of(line)
            named = _IN_BACKTICKS.findall(first)
            scopes = tuple(name for name in named if (ROOT / name).exists() and "/" in name)
            keys = tuple(name for name in named if name not in scopes)
            found.append(Row(number, keys, scopes, section.startswith(_COMMANDS), tuple(advice)))
    return found


def row_of(family: Family, rows: Iterable[Row]) -> Row | None:
    """The one that is for a family: by its beginning, or else by the nearest scope."""
    rows = list(rows)
    named = [row for row in rows if family.told in row.keys]
    if named:  # two at most: one for requests, one for commands
        same = [row for row in named if row.is_of_commands == family.is_of_commands]
        return (same or named)[0]
    if family.is_known:
        return None
    near = [
        (len(scope), row)
        for row in rows
        for scope in row.scopes
        if family.module == scope or family.module.startswith(scope)
    ]
    return max(near, key=lambda each: each[0])[1] if near else None


def unwritten(text: str) -> list[str]:
    """Families without a row, and where they are raised."""
    rows = rows_of(text)
    return [
        f"{family.code} {family.told!r}: {', '.join(where)}"
        for family, where in families().items()
        if row_of(family, rows) is None
    ]


def stale(text: str) -> list[str]:
    """Beginnings and scopes on the page that no error has, or that two rows have."""
    rows = rows_of(text)
    told = {family.told for family in families()}
    keys = [(key, row.is_of_commands) for row in rows for key in row.keys]
    found = [key for key, _ in keys if key not in told]
    found += sorted({key for key, side in keys if keys.count((key, side)) > 1})
    unknown = [(family, row_of(family, rows)) for family in families() if not family.is_known]
    for row in rows:
        for scope in row.scopes:
            if not any(near is row and f.module.startswith(scope) for f, near in unknown):
                found.append(scope)
    return found


def silent(text: str) -> list[str]:
    """First cells of rows that do not say why, or what to do."""
    return [", ".join(row.keys + row.scopes) for row in rows_of(text) if not all(row.advice)]


def made(text: str) -> str:
    """The page with what follows from the code."""
    rows = rows_of(text)
    codes: dict[int, set[str]] = {row.line: set() for row in rows}
    for family in families():
        if (row := row_of(family, rows)) is not None:
            codes[row.line].add(family.code)
    lines = text.splitlines()
    for row in rows:
        cells = cells_of(lines[row.line])
        cells[1] = _told_as(codes[row.line], is_of_commands=row.is_of_commands)
        lines[row.line] = _line(cells)
    return "\n".join(_with_statuses(lines)) + "\n"


def _told_as(codes: set[str], *, is_of_commands: bool) -> str:
    if is_of_commands:
        exits = {2 if code in _OF_COMMANDS else 1 for code in codes}
        return ", ".join(f"exit {code}" for code in sorted(exits))
    shown = {code: f"{code} {_http(code)}".strip() for code in codes}
    if (some := f"HTTP {GAP}") in shown:
        shown[some] = "a status of HTTP's"
    return ", ".join(shown[code] for code in sorted(codes))


def _http(code: str) -> str:
    status = HTTP_STATUSES.get(code)
    return str(status[0]) if status else ""


def _with_statuses(lines: list[str]) -> Iterator[str]:
    """With the table of statuses, whose last cells are kept."""
    is_within = False
    for line in lines:
        if line.startswith(_STATUS_HEAD):
            is_within = True
        elif not line.startswith("|"):
            is_within = False
        elif is_within and _ROW.match(line) and "`" in line:
            code, *_, advice = cells_of(line)
            yield _line([*_status_cells(code.strip("`")), advice])
            continue
        yield line


def _status_cells(code: str) -> list[str]:
    kinds = [kind for kind in classes().values() if kind.code == code]
    kinds.sort(key=lambda kind: len(kind.__mro__))
    status, kind = HTTP_STATUSES[code]
    names = ", ".join(f"`{each.__name__}`" for each in kinds if each is not SpecserveError)
    meaning = " ".join(_meaning(each) for each in kinds if each is not SpecserveError)
    return [f"`{code}`", str(status), f"`{kind}`", names, meaning]


def _meaning(kind: type[SpecserveError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0].replace("|", "\\|")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def read(page: Path = PAGE) -> str:
    """The page as it is."""
    return page.read_text(encoding="utf-8")
