"""Faults that no signal of the kernel's can cause, within nodes of a service that tests start.

`install` runs first of all in a node, or in the process that forks it (`tests.run_first`). From
then on SIGUSR1 keeps its loop busy, SIGRTMIN stops its loop while everything else of it lives, and
SIGUSR2 makes a draft process slow, or quick again.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.run_first import run_first

BUSY, WEDGED, SLOW = signal.SIGUSR1, signal.SIGRTMIN, signal.SIGUSR2
SECONDS = "SPECSERVE_TEST_FAULT_S"  # the variable that says how long the first two last
_SLOW_SHARE, _SLOW_TIMES = 0.3, 10  # of turns, and how much longer they take
_MODULES = ("specserve.processes.forkserver", "target_node", "draft_node")


def prepare(patch: pytest.MonkeyPatch, folder: Path, seconds: float) -> None:
    """Nodes that start from now on have these faults."""
    patch.setenv(SECONDS, str(seconds))
    code = "from tests.reliability.faults import install\ninstall()"
    run_first(patch, folder, _MODULES, code)


def install() -> None:
    """Of the process that calls it, and of those that it forks."""
    seconds = float(os.environ[SECONDS])
    signal.signal(BUSY, lambda *_: _be_busy(seconds))
    signal.signal(WEDGED, lambda *_: time.sleep(seconds))
    signal.signal(SLOW, lambda *_: _change_pace())


def _be_busy(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def _change_pace() -> None:
    """Wraps a turn of the draft's loop, or unwraps it."""
    from draft_node.node import DraftNode

    turn = DraftNode.step
    if hasattr(turn, "quick"):
        DraftNode.step = turn.quick
        return

    def slow(node: DraftNode) -> bool:
        begin_s = time.monotonic()
        worked = turn(node)
        if worked and random.random() < _SLOW_SHARE:
            time.sleep((_SLOW_TIMES - 1) * (time.monotonic() - begin_s))
        return worked

    slow.quick = turn
    DraftNode.step = slow
