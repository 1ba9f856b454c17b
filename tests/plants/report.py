"""docs/plants.md: every planted bug, the test that finds it, and how long that took."""

import os
import platform
import subprocess
from collections import Counter
from pathlib import Path

from tests.plants.verdict import Verdict

_HEAD = """\
# Planted bugs

A test suite is worth what it finds. These bugs are planted one at a time in a copy of the tree, and
each has to be found by the tests that it names: an assertion has to fail, not something to crash.
The table is written by `python -m tests.plants`, which exits with 1 if one is not found, or if the
code that it breaks has moved.

"""


def write_report(path: Path, verdicts: list[Verdict], seconds: float, commit: str) -> None:
    """The whole of `path` anew; `commit` is that of the tree when the run began."""
    ways = Counter(str(way) for verdict in verdicts for way in verdict.plant.ways)
    by_way = ", ".join(f"{way} {count}" for way, count in sorted(ways.items()))
    rows = "".join(_row(verdict) for verdict in verdicts)
    path.write_text(
        f"{_HEAD}"
        f"{len(verdicts)} plants, all caught, in {seconds / 60:.0f} minutes on "
        f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()}), "
        f"commit {commit}. Plants by way: {by_way}.\n"
        "\n| plant | where | what it breaks | caught by | s |\n|---|---|---|---|---|\n"
        f"{rows}",
        encoding="utf-8",
    )


def _row(verdict: Verdict) -> str:
    plant = verdict.plant
    where = f"`{plant.file}` `{plant.symbol}`"
    by = verdict.by.replace("|", "\\|")
    return f"| {plant.name} | {where} | {plant.breaks} | `{by}` | {verdict.seconds:.0f} |\n"


def commit_of_tree() -> str:
    """Of the tree; nothing where there is no history."""
    command = ["git", "describe", "--always", "--dirty"]
    root = Path(__file__).resolve().parents[2]
    try:
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
