# pyright: strict
"""Renews the figures of a page about scaling: tables and sentences between marks, nothing else.

A mark names what stands behind it, up to the next `<!-- end -->`:

    <!-- simulated: published -->
    <!-- end -->
"""

import re
from collections.abc import Mapping
from pathlib import Path

from bench.simulate.report import placed, predicted, tables_of, verdict
from bench.simulate.results import Results
from bench.tables import Table
from specserve.errors import InvalidField

_MARKED = re.compile(r"(<!-- simulated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = (
    "vectors", "published", "sensitivity", "backups", "draft_devices", "measured", "budgets",
    "beliefs", "hosted", "shared", "predicted", "placed", "verdict", "conclusion",
)  # fmt: skip
PARTS = "parts"  # by measured parts, which are simulated by themselves


def check_page(page: Path) -> None:
    """Before anything is simulated.

    Raises InvalidField for a page that is not there, has no mark, or one of something unknown.
    """
    if not page.is_file():
        raise InvalidField("--page", f"{page} is no file; give one with marks of what is simulated")
    marks = _MARKED.findall(page.read_text(encoding="utf-8"))
    if not marks:
        raise InvalidField("--page", f"{page} has no mark such as <!-- simulated: published -->")
    for _, name, _ in marks:
        if name not in (*NAMES, PARTS):
            known = ", ".join((*NAMES, PARTS))
            raise InvalidField("--page", f"nothing is called {name!r} (known: {known})")


def renew_page(page: Path, blocks: Mapping[str, str]) -> None:
    """Write anew what is marked by the names of `blocks`, of a page that was checked."""
    text = page.read_text(encoding="utf-8")
    page.write_text(renewed(text, blocks), encoding="utf-8")


def renewed(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with all that is marked so as it is now."""

    def block(found: re.Match[str]) -> str:
        name = found[2]
        return f"{found[1]}\n{blocks[name]}\n\n{found[3]}" if name in blocks else found[0]

    return _MARKED.sub(block, text)


def blocks_of(results: Results) -> dict[str, str]:
    """What stands behind a mark, by its name: one for each of `NAMES`."""
    found = {name: _rows(table) for name, table in tables_of(results).items()}
    found["predicted"] = "\n\n".join(
        f"{table.title}:\n\n{_rows(table)}" for table in predicted(results)
    )
    found["placed"] = _rows(placed(results))
    found["verdict"] = verdict(results)
    found["conclusion"] = results.conclusion
    return found


def _rows(table: Table) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
