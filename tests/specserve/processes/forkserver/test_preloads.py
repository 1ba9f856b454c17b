"""What the real forkserver does before it forks leaves it as it has to be: one thread, no CUDA."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, torch
for module in ("draft_node.start", "target_node.start"):
    importlib.import_module(module).preload()
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized())
"""


@pytest.mark.slow
def test_preloads_begin_no_thread_and_touch_no_device():
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.split() == ["1", "False"]
