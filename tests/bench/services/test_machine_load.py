"""What others have used of the machine meanwhile."""

import subprocess
import sys
import time

import pytest

from bench.processes import usage
from bench.services.machine_load import ForeignLoad, _Ran, _ran, _rise

BURNS = "import time\nwhile time.process_time() < 0.4: pass\n"


@pytest.mark.slow
def test_processor_time_of_others_is_told_from_ones_own():
    child = subprocess.Popen([sys.executable, "-c", BURNS + "time.sleep(60)"])
    try:
        everyone, ours = ForeignLoad([]), ForeignLoad([child.pid])
        time.sleep(1.0)
        assert everyone.share() - ours.share() > 0.25
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_what_others_ran_counts_though_they_have_ended():
    parent = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {BURNS!r}])\n"
    parent = subprocess.Popen([sys.executable, "-c", parent + "time.sleep(60)"])
    try:
        everyone, ours = ForeignLoad([]), ForeignLoad([parent.pid])
        time.sleep(1.5)
        assert everyone.share() - ours.share() > 0.15
    finally:
        parent.kill()
        parent.wait()


def test_a_thread_that_ends_takes_nothing_from_what_others_ran():
    """Its nanoseconds vanish from the process's; the ticks of the process keep them."""
    before = _Ran(exact_s=5.0, ticks_s=5.0, children_s=0.0)
    assert _rise(before, _Ran(0.1, 5.02, 0.0)) == pytest.approx(0.02)
    assert _rise(before, _Ran(5.003, 5.0, 0.0)) == pytest.approx(0.003)
    assert _rise(before, _Ran(5.0, 5.0, 0.25)) == 0.25


def test_a_process_that_has_just_ended_ran_nothing():
    child = subprocess.Popen(["true"])
    child.wait()
    assert usage(child.pid).ran_s == 0.0
    assert _rise(_Ran(1.0, 1.0, 1.0), _ran(child.pid)) <= 0.0
