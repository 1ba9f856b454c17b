"""Threads wait for each other, on cores of their own or on too few."""

import ctypes
import subprocess
import sys

import pytest

from specserve.backends.cpu.codegen.team_barrier import _LEAST, _MOST
from specserve.backends.cpu.machine_code import Team, host_machine

NUM_ROUNDS = 300
LIMIT_S = 60.0  # who is not woken would wait for ever


@pytest.fixture(autouse=True)
def team():
    if host_machine() is None or Team.of_torch() is None:
        pytest.skip("no compiled forwards here")


def output_of(script: str) -> str:
    """What it prints, in a process of its own, which can be ended while its threads wait."""
    return subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    ).stdout


def wait_together(num_threads: int) -> None:
    """Each thread notes where it has come to, waits, and looks whether all have."""
    team = Team.of_torch()
    assert team is not None
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


ALL_SIZES = """
import torch
from tests.backends.cpu.test_team_barrier import wait_together
for num_threads in (1, 2, 5):
    wait_together(num_threads)
    print(num_threads, end=" ")
"""


def test_nobody_leaves_before_all_have_come_and_all_leave():
    assert output_of(ALL_SIZES) == "1 2 5 "


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
INSIDE = """
    define i32 @num_sleepers() {
        %number = load i32, ptr @sleepers
        ret i32 %number
    }
    define i32 @num_turns() {
        %number = load i32, ptr @turns
        ret i32 %number
    }
"""
ON_ONE_CORE = """
import ctypes, os, sys, time
import torch
from specserve.backends.cpu.machine_code import Functions, Team
from specserve.backends.cpu.codegen.team_barrier import TEAM_BARRIER
from tests.backends.cpu.test_team_barrier import INSIDE, LOOP
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # and all threads that begin after
team, loop, barrier = Team.of_torch(), Functions(LOOP), Functions(TEAM_BARRIER + INSIDE)
record = (ctypes.c_int64 * 2)(loop.address("loop"), barrier.address("wait"))
began_s = time.process_time()
team.run(ctypes.addressof(record), 2)
print(time.process_time() - began_s)
for name in ("num_sleepers", "num_turns"):
    print(ctypes.CFUNCTYPE(ctypes.c_int32)(barrier.address(name))())
"""


def test_who_waits_on_a_busy_core_leaves_it_to_the_others():
    """Seconds of the core, which do not depend on what else runs: 2000 waits of two threads."""
    seconds, num_sleepers, num_turns = output_of(ON_ONE_CORE).split()
    assert float(seconds) < 1.0
    assert int(num_sleepers) == 0  # or whoever comes last calls the system for nobody
    assert _LEAST <= int(num_turns) < _MOST / 4  # which all began with
