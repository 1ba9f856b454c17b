"""Processor time as the kernel counts it."""

import time

import pytest

from bench.processes import usage


@pytest.mark.slow
def test_busy_time_is_counted_and_sleep_is_not():
    before = usage()
    deadline_s = time.thread_time() + 0.1
    while time.thread_time() < deadline_s:
        pass
    busy = usage().since(before)
    before = usage()
    time.sleep(0.2)
    idle = usage().since(before)
    assert 0.09 < busy.ran_s < 0.5
    assert idle.ran_s < 0.05


def test_a_process_that_is_gone_has_used_nothing():
    assert usage(2**22 + 1).ran_s == 0.0
