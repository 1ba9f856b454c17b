"""docs/reliability.md, from rows and from what was measured of them.

    python -m tests.reliability.page

writes it anew from bench/results/reliability.
"""

import json
import sys
from typing import Any

from tests.architecture.sources import ROOT
from tests.reliability.rows import ROWS, Row

PAGE = ROOT / "docs" / "reliability.md"
FOLDER = ROOT / "bench" / "results" / "reliability"
APIS = ("gRPC", "HTTP")
_COLUMNS = (
    "requests", "failed", "wrong", "detection_s", "recovery_s", "before", "during", "after",
)  # fmt: skip
_HEAD = """# Reliability

What a service has to survive, and what it was measured to do, fault by fault and over both APIs.
`make test-long` runs every test that is named below with its full counts and writes this page from
[bench/results/reliability](../bench/results/reliability); `python -m tests.reliability --only 17`
runs some rows, and `make test` the same tests with a tenth of the counts. Why the service behaves
as it does: [0040](decisions/0040-overload-and-lifetime.md).

Times are seconds; before, during and after are tokens a second. A bar that is missed is **MISSED**,
and ends the run with 1. "not run": there are no figures of this row yet.

"""
_TITLES = (
    "#", "what happens", "API", "requests", "failed", "wrong", "detection", "recovery", "before",
    "during", "after", "bar", "result",
)  # fmt: skip
_BETWEEN = """
## What is required, and who shows it

Figures that the table has no column for are below their row.

"""


def render() -> str:
    """The page."""
    lines = [line for row in ROWS for line in _lines(row)]
    table = f"| {' | '.join(_TITLES)} |\n{'|---' * len(_TITLES)}|\n"
    return _HEAD + table + "\n".join(lines) + "\n" + _BETWEEN + "\n".join(map(_details, ROWS))


def figures_of(row: Row, api: str) -> dict[str, Any] | None:
    """What was measured of a row over one API, if it was."""
    return _read(f"{row.number:02d}-{api}.json")


def run_of(row: Row) -> dict[str, Any] | None:
    """How its tests ended, on which machine, of which commit."""
    return _read(f"{row.number:02d}-run.json")


def _read(name: str) -> dict[str, Any] | None:
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else None


def _lines(row: Row) -> list[str]:
    found = {api: figures for api in APIS if (figures := figures_of(row, api))}
    if not found:
        return [_line(row, "", {})]
    return [_line(row, api, figures) for api, figures in found.items()]


def _line(row: Row, api: str, figures: dict[str, Any]) -> str:
    cells = [str(row.number), row.fault, api, *(_cell(figures.get(name)) for name in _COLUMNS)]
    return "| " + " | ".join([*cells, row.bar, _result(row, figures)]) + " |"


def _result(row: Row, figures: dict[str, Any]) -> str:
    run = run_of(row)
    if figures.get("missed"):
        return f"**MISSED**: {_plain(figures['missed'])}"
    if run is None:
        return "not run"
    return "held" if run["passed"] else "**MISSED**: a test failed"


def _details(row: Row) -> str:
    lines = [f"**{row.number}. {row.fault}.** Required: {row.required}.", ""]
    for api in APIS:
        figures = figures_of(row, api) or {}
        known = {"row", "api", "missed", *_COLUMNS}
        more = [f"{name} {_cell(value)}" for name, value in figures.items() if name not in known]
        if more:
            lines.append(f"- {api}: {', '.join(more)}")
    if run := run_of(row):
        lines.append(f"- run: {run['machine']}, commit {run['commit']}, {run['date']}")
    lines += [f"- `{test}`" for test in _without_repetition(row.tests)]
    return "\n".join(lines) + "\n"


def _without_repetition(tests: tuple[str, ...]) -> list[str]:
    """Of one file the names alone."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        path, name = test.split("::")
        by_file.setdefault(path, []).append(name)
    return [f"{path}` `{'` `'.join(names)}" for path, names in by_file.items()]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else _plain(str(value))


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:160]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
