"""Threads wait for each other, on cores of their own or on too few."""

import ctypes
import subprocess
import sys

import pytest

from specserve.model.machine_code import Team, host_machine

NUM_ROUNDS = 300


@pytest.fixture
def team():
    found = None if host_machine() is None else Team.of_torch()
    if found is None:
        pytest.skip("no compiled forwards here")
    return found


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_nobody_leaves_before_all_have_come(team, num_threads):
    wait = ctypes.CFUNCTYPE(None)(team.barrier)  # without the lock of Python
    come = [[] for _ in range(num_threads)]
    wrong = []

    def work(_, me, size):
        for place in range(NUM_ROUNDS):
            come[me].append(place)
            wait()
            wrong.extend(each for each in come[:size] if place not in each[-2:])

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(work)
    record = (ctypes.c_void_p * 1)(ctypes.cast(function, ctypes.c_void_p))
    team.run(ctypes.addressof(record), num_threads)
    assert [len(each) for each in come] == [NUM_ROUNDS] * num_threads
    assert not wrong


LOOP = """
    define void @loop(ptr %record, i64 %me, i64 %team) {
    start:
        %place = getelementptr i64, ptr %record, i64 1
        %wait = load ptr, ptr %place
        br label %body
    body:
        %i = phi i64 [0, %start], [%next, %body]
        call void %wait()
        %next = add i64 %i, 1
        %is_over = icmp eq i64 %next, 2000
        br i1 %is_over, label %done, label %body
    done:
        ret void
    }
"""
ON_ONE_CORE = """
import ctypes, os, sys, time
import torch
from specserve.model.machine_code import Functions, Team
from tests.specserve.model.test_team_barrier import LOOP
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # and all threads that begin after
team, functions = Team.of_torch(), Functions(LOOP)
record = (ctypes.c_int64 * 2)(functions.address("loop"), team.barrier)
began_s = time.process_time()
team.run(ctypes.addressof(record), 2)
print(time.process_time() - began_s)
"""


def test_who_waits_on_a_busy_core_leaves_it_to_the_others(team):
    """Seconds of the core, which do not depend on what else runs: 2000 waits of two threads."""
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1.0
