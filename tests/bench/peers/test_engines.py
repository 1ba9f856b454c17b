"""Children of the bench end with all that they started, by themselves where they can."""

import os
import sys
import time

import pytest

from bench.peers.engines import Child, pinned
from specserve.errors import Failed

_PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print("up", flush=True)
time.sleep(60)
"""
# Like an engine's worker: notices that its parent is gone, tidies up, ends.
_TIDY = """
import os, sys, time
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.02)
time.sleep(0.3)
open(sys.argv[1], "w").write("tidy")
"""
_STUBBORN = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(60)
"""


def child(tmp_path, code, *arguments, cores=None):
    cores = cores or os.sched_getaffinity(0)
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return Child(words, {"SAID": "so"}, cores, tmp_path / "logs" / "child.log", is_worker=True)


def wait_for(condition):
    give_up_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


@pytest.mark.slow
def test_what_a_child_started_may_tidy_up_before_it_is_killed(tmp_path):
    parent = child(tmp_path, _PARENT, _TIDY, tmp_path / "left")
    assert parent.process.stdout.readline() == b"up\n"
    time.sleep(1)  # its own child has to be up, too
    parent.stop()
    assert (tmp_path / "left").read_text() == "tidy"


@pytest.mark.slow
def test_what_does_not_end_by_itself_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.peers.engines._STOP_TIMEOUT_S", 0.5)
    left = tmp_path / "left"
    parent = child(tmp_path, _PARENT, _STUBBORN, left)
    wait_for(lambda: left.exists() and left.read_text())
    parent.stop()
    wait_for(lambda: not os.path.exists(f"/proc/{left.read_text()}"))


def test_a_child_has_its_cores_and_environment_and_the_bench_keeps_its_own(tmp_path):
    before = os.sched_getaffinity(0)
    core = max(before)
    code = "import os; print(os.sched_getaffinity(0), os.environ['SAID'])"
    one = child(tmp_path, code, cores={core})
    assert one.process.stdout.readline().decode() == f"{{{core}}} so\n"
    assert os.sched_getaffinity(0) == before
    one.stop()


def test_the_last_words_of_a_child_are_its_reason(tmp_path):
    one = child(tmp_path, "import sys; print('a\\n\\nb\\nc\\nd', file=sys.stderr); sys.exit(7)")
    failure = one.failure()
    assert isinstance(failure, Failed)
    assert str(failure) == "ended with 7: b | c | d"
    one.stop()


def test_cores_are_given_back_after_a_failure():
    before = os.sched_getaffinity(0)
    with pytest.raises(Failed), pinned({min(before)}):
        raise Failed("on one core")
    assert os.sched_getaffinity(0) == before
