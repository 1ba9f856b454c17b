"""Every row with its full counts, and docs/reliability.md of what was measured.

    python -m tests.reliability [--only 17,30] [--again]

Rows that have been run on this commit, and passed, are left out unless they are named or `--again`
is given: a run that was stopped goes on where it was. Exits with 1 if a test failed or a bar was
missed.
"""

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.architecture.sources import ROOT
from tests.reliability.figures import FOLDER_VARIABLE
from tests.reliability.page import APIS, FOLDER, PAGE, figures_of, render, run_of
from tests.reliability.rows import ROWS, Row
from tests.reliability.scale import LONG_VARIABLE

log = logging.getLogger("tests.reliability")


class Runs:
    """Tests that have been run; those of several rows are run once."""

    def __init__(self) -> None:
        self._passed: dict[str, bool] = {}

    def run(self, row: Row) -> bool:
        """Whether all tests of a row passed."""
        tests = [test for test in row.tests if test not in self._passed]
        if tests:
            self._passed |= _run_tests(tests)
        return all(self._passed[test] for test in row.tests)


def _run_tests(tests: list[str]) -> dict[str, bool]:
    environment = os.environ | {LONG_VARIABLE: "1", FOLDER_VARIABLE: str(FOLDER)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-m", "pytest", "-q", "--durations", "3", f"--junitxml={report}", *tests]
        subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return {test: _has_passed(test, cases) for test in tests}


def _has_passed(test: str, cases: Iterable[ElementTree.Element]) -> bool:
    """All cases of a test, of which there has to be one."""
    path, name = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    own = [
        case
        for case in cases
        if case.get("classname") == module and case.get("name", "").partition("[")[0] == name
    ]
    return bool(own) and all(len(list(case)) == 0 for case in own)


def _commit() -> str:
    """The last one that changed what is measured."""
    product = ["specserve", "target_node", "draft_node"]
    words = ["git", "log", "-1", "--format=%h", "--", *product]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _machine() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(models)} cores of {models[0] if models else platform.machine()}"


def _wanted(only: str, again: bool) -> list[Row]:
    rows = [row for row in ROWS if row.tests]
    if only:
        numbers = {int(number) for number in only.split(",")}
        return [row for row in rows if row.number in numbers]
    commit = _commit()
    done = {
        row.number
        for row in rows
        if (run := run_of(row)) and run["passed"] and run["commit"] == commit
    }
    return [row for row in rows if again or row.number not in done]


def _run_row(row: Row, runs: Runs) -> bool:
    begin_s = time.monotonic()
    passed = runs.run(row)
    run = {
        "row": row.number,
        "passed": passed,
        "seconds": round(time.monotonic() - begin_s),
        "commit": _commit(),
        "machine": _machine(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }
    (FOLDER / f"{row.number:02d}-run.json").write_text(json.dumps(run, indent=1) + "\n")
    PAGE.write_text(render(), encoding="utf-8")
    missed = [figures.get("missed") for api in APIS if (figures := figures_of(row, api))]
    told = "; ".join(text for text in missed if text)
    log.info("row %d: %s %s", row.number, "held" if passed else "MISSED", told)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="numbers of rows, such as 17,30")
    parser.add_argument("--again", action="store_true", help="also what has passed on this commit")
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s", stream=sys.stderr)
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs, wanted = Runs(), _wanted(options.only, options.again)
    for row in wanted:  # at once: a test of one may measure another, which is not measured again
        for api in APIS:
            (FOLDER / f"{row.number:02d}-{api}.json").unlink(missing_ok=True)
    held = [_run_row(row, runs) for row in wanted]  # all of them
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
