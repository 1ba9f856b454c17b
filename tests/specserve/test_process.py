"""What children do to themselves before they work."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specserve.config import Placement, ResolvedConfig, write_resolved
from specserve.process import sleep_exactly

_PR_GET_TIMERSLACK = 30


def test_a_thread_that_asks_for_it_wakes_on_time_and_no_other_does():
    prctl, found = ctypes.CDLL(None).prctl, []

    def ask():
        sleep_exactly()
        found.append(prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))

    before = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [1000]
    assert prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0) == before


@pytest.mark.parametrize("role", ["draft", "target"])
def test_slow_imports_are_done_on_the_planned_cores(role, tmp_path):
    """A draft that starts again must not take the target's core for them."""
    core = max(os.sched_getaffinity(0))
    config = ResolvedConfig(placements=(Placement(role=role, rank=0, device="cpu", cores=(core,)),))
    write_resolved(config, tmp_path / "config.json")
    ready_fd, write_end = os.pipe()
    words = [sys.executable, "-P", "-m", f"{role}_node", "--config", str(tmp_path / "config.json")]
    words += ["--control-dir", str(tmp_path), "--ready-fd", str(write_end)]
    words += ["--parent-pid", str(os.getpid())]
    process = subprocess.Popen(words, pass_fds=(write_end,), stdin=subprocess.DEVNULL)
    try:
        assert _affinity_with("libtorch_cpu", process.pid) == {core}
    finally:
        process.kill()
        process.wait()
        os.close(ready_fd)
        os.close(write_end)


def _affinity_with(library: str, pid: int) -> set[int]:
    """The cores of a process as soon as it has loaded a library."""
    deadline_s = time.monotonic() + 60
    while library not in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline_s, f"no {library}"
        time.sleep(0.001)
    return set(os.sched_getaffinity(pid))
