"""Runs tests on a copy of the tree, with and without a bug in it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.plants.plant import Plant

# But for those that ask whether plants find their code: the one that is there does not.
FAST = ("-m", "not slow and not gpu and not multigpu", "--ignore=tests/plants")
TIMEOUT_S = 900.0
# How messages of failures begin that are a test's own; all else is an exception in what it ran.
_JUDGEMENTS = ("AssertionError", "assert ", "Failed: ")
_running: set[subprocess.Popen[str]] = set()  # of all threads
# Compiled kernels lie in __pycache__ and are taken along: every copy would compile them anew.
_LEFT_BEHIND = (".git", ".venv", ".*_cache", "results", "*.egg-info")


@dataclass(frozen=True)
class TestRun:
    """What pytest found. A test that an exception ended is an error: it has not judged anything."""

    __test__ = False  # whatever pytest thinks of the name

    failed: tuple[str, ...]
    errors: tuple[str, ...]
    num_passed: int
    seconds: float
    output: str

    @property
    def is_clean(self) -> bool:
        return self.num_passed > 0 and not self.failed and not self.errors


@contextmanager
def copy_of(root: Path, plant: Plant | None = None) -> Iterator[Path]:
    """A copy of the tree, gone afterwards. Raises `Moved` if the plant does not find its code."""
    planted = None if plant is None else plant.applied(root)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return (
            shutil.ignore_patterns(*_LEFT_BEHIND)(folder, names) if folder == str(root) else set()
        )

    with tempfile.TemporaryDirectory(prefix="plant-") as parent:
        copy = Path(parent) / "tree"
        shutil.copytree(root, copy, ignore=ignored, symlinks=True)
        if plant is not None and planted is not None:
            (copy / plant.file).write_text(planted, encoding="utf-8")
        yield copy


def run_tests(tree: Path, arguments: Collection[str], *, stop_at_first: bool = True) -> TestRun:
    """pytest with these arguments, in `tree` and of its sources."""
    report = tree / "plants.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *arguments]
    command += ["-x"] if stop_at_first else []
    report.unlink(missing_ok=True)  # of a run before, if this one comes to no end
    began_s = time.monotonic()
    output = _output_of(command, tree)
    return _read(report, time.monotonic() - began_s, output)


def _output_of(command: list[str], tree: Path) -> str:
    # The tree's packages go before those that are installed, in the children of tests, too.
    environment = os.environ | {"PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT_S:.0f} s"
    finally:
        _end(process)
        _running.discard(process)
        if process.stdout is not None:
            process.stdout.close()


def end_all() -> None:
    """Kill whatever runs: those who wait for it get what it said so far."""
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """With its children; those with sessions of their own end when their parents do."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _read(report: Path, seconds: float, output: str) -> TestRun:
    if not report.is_file():  # it did not come to an end, or there is no such test
        return TestRun((), ("pytest",), 0, seconds, output)
    failed: list[str] = []
    errors: list[str] = []
    num_passed = 0
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        failure = case.find("failure")
        if failure is not None:
            judged = (failure.get("message") or "").startswith(_JUDGEMENTS)
            (failed if judged else errors).append(name)
        elif case.find("error") is not None:
            errors.append(name)
        else:
            num_passed += case.find("skipped") is None
    return TestRun(tuple(failed), tuple(errors), num_passed, seconds, output)
