"""A loop that stands still ends its process; one that turns does not."""

import subprocess
import sys

import pytest

SCRIPT = """
import itertools, sys, time
from target_node.ranks import watch
turns = itertools.count()
moves = sys.argv[1] == "turning"
watch(lambda: next(turns) if moves else 0, 0.2, lambda problem: print(problem, flush=True))
time.sleep(1.0)
print("still here")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("state", "code"), [("turning", 0), ("standing", 1)])
def test_only_a_loop_that_stands_still_ends_its_process(state: str, code: int):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, state],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ("still here" in ended.stdout) == (code == 0)
    assert ("no round ended" in ended.stderr) == (code == 1)
    assert ("no round ended for 0.2 s (engine.hang_timeout_s)" in ended.stdout) == (code == 1)
