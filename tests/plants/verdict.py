"""Is a planted bug found by the tests that it names; if not, by any fast one?"""

import enum
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.plants.plant import Moved, Plant
from tests.plants.workshop import FAST, TestRun, copy_of, run_tests


class Found(enum.StrEnum):
    """What became of a plant. Only the first is as it should be."""

    BY_ITS_TESTS = "caught"
    BY_OTHERS = "caught by others alone"  # which it should name
    NEVER = "NOT CAUGHT"
    BROKEN = "BROKEN"  # its tests do not pass without it, do not exist, or only crash with it
    MOVED = "MOVED"  # its code is no longer there


@dataclass(frozen=True)
class Verdict:
    """What became of one plant."""

    plant: Plant
    found: Found
    by: str = ""  # the first test that failed, or why none did
    seconds: float = 0.0  # of the tests with the bug in place


def judge(plant: Plant, root: Path) -> Verdict:
    """Plant it in a copy of `root` and run its tests there; they are taken to pass without it."""
    try:
        return _judged(plant, root)
    except Moved as moved:
        return Verdict(plant, Found.MOVED, str(moved))
    except (OSError, ElementTree.ParseError) as error:  # no room for a copy, a run that was killed
        return Verdict(plant, Found.BROKEN, str(error))


def _judged(plant: Plant, root: Path) -> Verdict:
    with copy_of(root, plant) as tree:
        run = run_tests(tree, plant.tests)
        if run.failed:
            return Verdict(plant, Found.BY_ITS_TESTS, run.failed[0], run.seconds)
        if not run.is_clean:
            return Verdict(plant, Found.BROKEN, _why(run), run.seconds)
        others = run_tests(tree, FAST)
    seconds = run.seconds + others.seconds
    if others.failed:
        return Verdict(plant, Found.BY_OTHERS, others.failed[0], seconds)
    if not others.is_clean:
        return Verdict(plant, Found.BROKEN, f"the fast suite: {_why(others)}", seconds)
    return Verdict(plant, Found.NEVER, "", seconds)


def unsound(plants: list[Plant], root: Path) -> dict[str, str]:
    """Plants by name whose tests do not pass on the tree as it is, and what was found."""
    tests = sorted({test for plant in plants for test in plant.tests})
    with copy_of(root) as tree:
        if run_tests(tree, tests, stop_at_first=False).is_clean:
            return {}
        alone = {test: run_tests(tree, [test]) for test in tests}
    bad = {test: _why(run) for test, run in alone.items() if not run.is_clean}
    return {plant.name: bad[test] for plant in plants for test in plant.tests[::-1] if test in bad}


def _why(run: TestRun) -> str:
    tail = [line for line in run.output.strip().splitlines() if line.strip()][-3:]
    return " / ".join([*run.failed, *run.errors, *tail])
