"""What children do to themselves before they work."""

import ctypes
import platform
import subprocess
import sys
import threading

import pytest

from specserve.processes.process import sleep_exactly

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


_COUNT_HEAPS = """
import ctypes, sys, threading
from specserve.processes.process import share_heap
if sys.argv[1] == "shared":
    assert share_heap()
libc, gate = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def take():
    libc.malloc(100)
    gate.wait()

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_threads_share_one_heap_where_that_is_asked_for(tmp_path):
    counts = {}
    for mode in ("shared", "own"):
        report = tmp_path / mode
        subprocess.run([sys.executable, "-c", _COUNT_HEAPS, mode, str(report)], check=True)
        counts[mode] = report.read_text().count("<heap nr=")
    assert counts["shared"] == 1
    assert counts["own"] > 1


def test_what_is_imported_slowly_is_not_looked_through():
    code = """
import gc
from specserve.processes.process import slow_imports
before = gc.get_freeze_count()
with slow_imports():
    assert not gc.isenabled()
    import numpy
assert gc.isenabled()
assert gc.get_freeze_count() > before + 1000
"""
    subprocess.run([sys.executable, "-c", code], check=True)
