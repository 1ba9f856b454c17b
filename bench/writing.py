# pyright: strict
"""Writes what a bench found: results.json, report.md, and the tables to the terminal.

Or why it found nothing, on one line.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.tables import Table
from specserve.errors import InvalidField

RESULTS_FILE, REPORT_FILE = "results.json", "report.md"
_FILE_WIDTH = 180  # where no terminal sets one


def make_results_folder(out: Path) -> None:
    """Before anything is measured. Raises InvalidField where no results could be written."""
    if out.exists() and not out.is_dir():
        raise InvalidField("--out", f"{out} is a file; results need a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InvalidField("--out", f"cannot write to {out}: {error.strerror}") from error


def show_failure(bench: str, error: Exception) -> None:
    """On stderr."""
    line = " ".join(f"{bench}: {error}".split())
    Console(stderr=True).print(line, style="red", markup=False, highlight=False, soft_wrap=True)


def write_results(results: msgspec.Struct, out: Path) -> Path:
    """results.json in `out`, which is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / RESULTS_FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return path


def write_tables(heading: Sequence[str], tables: Sequence[Table], out: Path) -> Path:
    """report.md: paragraphs of `heading`, then the tables."""
    parts = [*heading, *(table.markdown() for table in tables)]
    path = out / REPORT_FILE
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def show_tables(tables: Sequence[Table], verdict: str) -> None:
    """On stdout, for people; `verdict` comes last."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_FILE_WIDTH)
    for table in tables:
        console.print(table.rich())
        if table.note:
            console.print(table.note, style="dim", markup=False)
        console.print()
    console.print(verdict, markup=False)
